// How a module computes its products in 8 bits (ops/moe_ffn/fp8_weights.h), and what recipe delayed
// remembers of their operands (ops/moe_ffn/fp8_history.h): state of the model under the module's
// name, "layers.3.moe.experts.fp8.history".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "troupe/distributed/params/param.h"
#include "troupe/ops/moe_ffn/fp8_history.h"

namespace troupe {

class Fp8Products {
 public:
  // From now on in 8 bits. The module has one product or two, each with an input and a gradient of
  // its output; a history is the module's own, and `fp8` has none.
  void use(const Fp8Options& fp8, int64_t products);
  // As Experts::keep_rounded_weights.
  void keep_weights(bool keep) {
    if (options_) options_->keep_weights(keep);
  }
  // Absent: in the run's precision. A history is in the parameter's memory, which must be there.
  const std::optional<Fp8Options>& options() const;

  static void visit(auto& m, auto&& f) { f("history", m.history_); }

 private:
  std::optional<Fp8Options> options_;
  std::optional<Param> history_;  // f32 [operands, steps], of recipe delayed alone
};

using VisitFp8 = std::function<void(Fp8Products&)>;

}  // namespace troupe
