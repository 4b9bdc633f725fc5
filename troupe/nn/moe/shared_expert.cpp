#include "troupe/nn/moe/shared_expert.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>

#include "troupe/core/check.h"
#include "troupe/ops/support/view.h"

namespace troupe {

SharedExpert::SharedExpert(const SharedConfig& config, const ExpertsConfig& routed, int64_t width,
                           int64_t layers, const TensorParts& parts)
    : form_(config.form), ffn_(routed.form) {
  const int64_t F = config.width_for(routed.hidden), G = ffn_.gates();
  TROUPE_CHECK(F >= 1, "a shared expert of width", F);
  w1 = Param::of({G, F, width}, routed.init.up()).showing({G * F, width});
  w2 = Param::of({width, F}, routed.init.down(layers));
  const int64_t cut = parts.split_shared ? parts.sharding.ranks() : 1;
  require_whole(config.low_bit, cut, "shared experts");
  w1.keep_in(config.low_bit);
  w2.keep_in(config.low_bit);
  if (config.lora.on()) {
    lora.emplace(config.lora, w1, w2, DropPlace::kSharedUp, DropPlace::kSharedDown);
    w1.frozen = w2.frozen = true;
  }
  if (parts.split_shared) {
    sharding_ = parts.sharding;
    parts.cut(w1, 1);
    parts.cut(w2, 1);
    if (lora) lora->cut(parts);
  }
  if (form_ == SharedForm::kGate) gate = Param::of({1, width}, {.kind = Init::kZero});
}

void SharedExpert::compute_in_fp8(const Fp8Options& fp8) {
  TROUPE_CHECK(!lora && !w1.low_bit,
               "fp8: shared experts with adapters or in few bits stay in bf16");
  require_fp8_sides(w1, w2, "a shared expert");
  fp8_.use(fp8, /*products=*/2);
}

void SharedExpert::keep_rounded_weights(bool keep) {
  fp8_.keep_weights(keep);
}

at::Tensor SharedExpert::of_gathered(const at::Tensor& x_TD, const FfnOptions& options,
                                     const Context& context) const {
  if (lora || w1.low_bit) return lora_dense_ffn(x_TD, FfnMatrices(w1, w2), lora, options, context);
  const ExpertWeights w{w1.value.unsqueeze(0), std::nullopt, w2.value.unsqueeze(0), std::nullopt};
  return dense_ffn(x_TD, w, options, fp8_.options());
}

at::Tensor SharedExpert::forward(const at::Tensor& x_tD, int64_t all,
                                 const Context& context) const {
  const GatheredTokens x = sharding_.all_gather(x_tD, all);
  FfnOptions options = ffn_.options();
  options.weights_order = x.beside;
  at::Tensor y =
      sharding_.reduce_scatter(of_gathered(x.x_T, options, of_all_tokens(context, sharding_, all)));
  if (!gate) return y;
  const auto wide = wide_type(x_tD);
  const at::Tensor open_T1 = at::sigmoid(at::matmul(x_tD.to(wide), gate->value.to(wide).t()));
  return (y * open_T1).to(y.scalar_type());
}

at::Tensor SharedExpert::add(const at::Tensor& routed_TD, const at::Tensor& shared_TD,
                             int64_t top_k) const {
  if (form_ != SharedForm::kWeighted) return routed_TD + shared_TD;
  const auto k = static_cast<double>(top_k);
  return shared_TD / (k + 1) + routed_TD * (k / (k + 1));
}

}  // namespace troupe
