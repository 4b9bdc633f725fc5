// Unit 0: h = table[ids] (+ positions[p]), with dropout.
#pragma once

#include <optional>

#include "troupe/nn/attention/packing.h"
#include "troupe/nn/model/model.h"

namespace troupe {

class Embedding {
 public:
  explicit Embedding(const ModelConfig& config, const TensorParts& parts = {});

  // [t, D] for this rank's tokens.
  at::Tensor forward(const Batch& batch, const Packing& packing, const Context& context) const;
  at::Tensor rows(const at::Tensor& ids_BS) const;  // the same without positions and dropout

  static void visit(auto& m, auto&& f) {
    f("tokens", m.tokens);
    f("positions", m.positions);
  }

  Param tokens;                    // [V, D], V padded; own rows alone where the table is cut
  std::optional<Param> positions;  // [max_positions, D]

 private:
  double dropout_;
  TensorParts parts_;
};

}  // namespace troupe
