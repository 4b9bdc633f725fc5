// Unit 0: h = table[ids] (+ positions[p]), with dropout.
#pragma once

#include <optional>

#include "troupe/nn/models/model.h"
#include "troupe/nn/packing.h"

namespace troupe {

class Embedding {
 public:
  explicit Embedding(const ModelConfig& config);

  at::Tensor forward(const Batch& batch, const Packing& packing, const Context& context) const;
  at::Tensor rows(const at::Tensor& ids) const;  // of the table alone

  static void visit(auto& m, auto&& f) {
    f("tokens", m.tokens);
    f("positions", m.positions);
  }

  Param tokens;                    // [V, D], V padded
  std::optional<Param> positions;  // [max_positions, D]

 private:
  double dropout_;
};

}  // namespace troupe
