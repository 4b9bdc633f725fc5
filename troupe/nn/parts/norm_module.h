// The norm as a module: ops/norm with its parameters.
#pragma once

#include <optional>
#include <utility>

#include "troupe/core/text/text.h"
#include "troupe/distributed/params/param.h"
#include "troupe/ops/norm.h"

namespace troupe {

enum class NormForm { kRms, kRmsRounded, kLayer };  // rounded: to the type before the weight
constexpr auto names_of(NormForm) {
  return std::array{Named{"rms", NormForm::kRms}, Named{"rms_rounded", NormForm::kRmsRounded},
                    Named{"layer", NormForm::kLayer}};
}

struct NormConfig {
  NormForm kind = NormForm::kRms;
  double eps = 1e-5;
  bool bias = false;  // of a LayerNorm

  static void visit(auto& c, auto&& f) {
    f("kind", c.kind, "rms, rms_rounded (cast to the model's type before the weight) or layer.");
    f("eps", c.eps, "Epsilon added to the mean square (above 0).");
    f("bias", c.bias, "Bias of LayerNorm.");
  }
};

struct NormModule {
  NormModule(const NormConfig& config, int64_t width)
      : weight(Param::of({width}, {.kind = Init::kOne}, Group::kNoDecay)),
        options{to_text(config.kind), config.eps} {
    if (config.kind == NormForm::kLayer && config.bias) {
      bias = Param::of({width}, {.kind = Init::kZero}, Group::kNoDecay);
    }
  }

  at::Tensor forward(const at::Tensor& x) const { return norm(x, weight.value, b(), options); }
  // {norm(x + h), x + h}
  std::pair<at::Tensor, at::Tensor> add(const at::Tensor& x, const at::Tensor& h) const {
    return add_norm(x, h, weight.value, b(), options);
  }

  static void visit(auto& m, auto&& f) {
    f("weight", m.weight);
    f("bias", m.bias);
  }

  Param weight;               // [D]
  std::optional<Param> bias;  // [D]
  NormOptions options;

 private:
  std::optional<at::Tensor> b() const { return bias ? std::optional(bias->value) : std::nullopt; }
};

}  // namespace troupe
