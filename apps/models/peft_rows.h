// Where a part of a weight of ours is in a model hub's tensors, as adapters see it.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/checkpoint/hf/hf_weights.h"

namespace troupe {

// The matrix of theirs, or the expert's of a tensor of all, that a piece is rows of.
struct PieceRows {
  int64_t expert = 0, experts = 1;
  int64_t out = 0, in = 0;
  bool in_first = false;  // experts' tensors [E, in, out]
  int64_t first = 0, step = 1;
};

// E2005 for what PEFT has no factors of, or others: matrices that are kept transposed. The message
// ends with `instead`: what to do.
PieceRows rows_of(const HfPiece& piece, int64_t columns, const char* instead);
[[noreturn]] void refuse_piece(const HfPiece& piece, const std::string& why, const char* instead);

// Whether PEFT names it in target_parameters, not in target_modules.
bool is_parameter(const HfPiece& piece, const HfTensor& ours);

// "model.layers.3.mlp.gate.weight": its module and the parameter in it.
struct ParameterPlace {
  std::string module, parameter;
};
ParameterPlace split_name(const std::string& theirs);

}  // namespace troupe
