#include "troupe/nn/ffn/dense_ffn.h"

#include <ATen/TensorOperators.h>

#include "troupe/core/check.h"
#include "troupe/nn/attention/attention_module.h"

namespace troupe {

FfnForm form_of(FfnAct act) {
  switch (act) {
    case FfnAct::kSwiglu: return {"silu", true, {}, 0};
    case FfnAct::kGeglu: return {"gelu", true, {}, 0};
    case FfnAct::kGegluTanh: return {"gelu_tanh", true, {}, 0};
    case FfnAct::kReglu: return {"relu", true, {}, 0};
    case FfnAct::kGelu: return {"gelu", false, {}, 0};
    case FfnAct::kGeluTanh: return {"gelu_tanh", false, {}, 0};
    case FfnAct::kRelu2: return {"relu2", false, {}, 0};
    case FfnAct::kSilu: return {"silu", false, {}, 0};
    case FfnAct::kRelu: break;
  }
  return {"relu", false, {}, 0};
}

DenseFfn::DenseFfn(const ModelConfig& c, int64_t hidden, const TensorParts& parts)
    : form_(form_of(c.act)), sharding_(parts.sharding) {
  const int64_t G = form_.gates(), D = c.width;
  const Init up = {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)};
  w1 = Param::of({G, hidden, D}, up).showing({G * hidden, D});
  w2 = Param::of({D, hidden}, residual_init(c));
  const LoraConfig adapter = c.lora.of(LoraTarget::kFfn);
  const std::optional<LowBitFormat> bits = c.lora.bits_of(LoraTarget::kFfn);
  require_whole(bits, sharding_.ranks(), "dense feed-forwards");
  w1.keep_in(bits);
  w2.keep_in(bits);
  if (adapter.on()) lora.emplace(adapter, w1, w2, DropPlace::kFfnUp, DropPlace::kFfnDown);
  parts.cut(w1, 1);
  parts.cut(w2, 1);
  if (lora) lora->cut(parts);
  if (!c.ffn_bias.value_or(c.bias)) return;
  b1 = Param::of({G, hidden}, {.kind = Init::kZero}, Group::kNoDecay).showing({G * hidden});
  b2 = Param::of({D}, {.kind = Init::kZero}, Group::kNoDecay);
  parts.cut(*b1, 1);
}

void DenseFfn::compute_in_fp8(const Fp8Options& fp8) {
  TROUPE_CHECK(!b1 && !b2, "fp8: dense feed-forwards with biases stay in bf16");
  TROUPE_CHECK(!lora && !w1.low_bit,
               "fp8: dense feed-forwards with adapters or in few bits stay in bf16");
  require_fp8_sides(w1, w2, "a dense feed-forward");
  fp8_.use(fp8, /*products=*/2);
}

void DenseFfn::keep_rounded_weights(bool keep) {
  fp8_.keep_weights(keep);
}

at::Tensor DenseFfn::of_gathered(const at::Tensor& x_TD, const FfnOptions& options,
                                 const Context& context) const {
  const bool adds_b2 = b2 && sharding_.alone();
  if (lora || w1.low_bit) {
    FfnMatrices w(w1, w2);
    if (b1) w.b1 = b1->value;
    if (adds_b2) w.b2 = b2->value;
    return lora_dense_ffn(x_TD, w, lora, options, context);
  }
  ExpertWeights w{w1.value.unsqueeze(0), std::nullopt, w2.value.unsqueeze(0), std::nullopt};
  if (b1) w.b1 = b1->value.unsqueeze(0);
  if (adds_b2) w.b2 = b2->value.unsqueeze(0);
  return dense_ffn(x_TD, w, options, fp8_.options());
}

at::Tensor DenseFfn::forward(const at::Tensor& x_tD, int64_t all, const Context& context) const {
  const GatheredTokens x = sharding_.all_gather(x_tD, all);
  FfnOptions options = form_.options();
  options.weights_order = x.beside;
  const at::Tensor y_tD =
      sharding_.reduce_scatter(of_gathered(x.x_T, options, of_all_tokens(context, sharding_, all)));
  return b2 && !sharding_.alone() ? y_tD + b2->value : y_tD;  // once, behind the sum
}

}  // namespace troupe
