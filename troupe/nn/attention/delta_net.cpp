#include "troupe/nn/attention/delta_net.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softplus.h>

#include <optional>

#include "troupe/core/check.h"
#include "troupe/nn/attention/kv_cache.h"
#include "troupe/ops/gated_delta.h"
#include "troupe/ops/short_conv.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

Linear delta_product(const ModelConfig& c, int64_t rows) {
  return Linear({rows, c.width, {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)}});
}

int64_t delta_keys(const DeltaConfig& c) {
  return c.key_heads * c.key_dim;
}
int64_t delta_values(const DeltaConfig& c) {
  return c.value_heads * c.value_dim;
}

}  // namespace

DeltaNet::DeltaNet(const ModelConfig& c, const TensorParts& parts, int64_t layer)
    : config_(*c.delta),
      index_(layer),
      qkvz_(delta_product(c, 2 * (delta_keys(config_) + delta_values(config_)))),
      ba_(delta_product(c, 2 * config_.value_heads)),
      out_({c.width, delta_values(config_), residual_init(c)}),
      conv_(Param::of({2 * delta_keys(config_) + delta_values(config_), config_.conv},
                      {.kind = Init::kKaimingUniform, .fan_in = config_.conv})),
      a_log_(Param::of({config_.value_heads}, {.kind = Init::kLogDecay}, Group::kNoDecay)),
      dt_bias_(Param::of({config_.value_heads}, {.kind = Init::kOne}, Group::kNoDecay)),
      norm_({NormForm::kRmsRounded, c.norm.eps, false}, config_.value_dim) {
  TROUPE_CHECK(
      parts.sharding.alone() && parts.keys.ranks() <= 1 && !parts.head_exchange && !parts.ring,
      "model.delta needs whole rows and all heads on a rank: set parallel.tensor and "
      "parallel.context to 1");
}

void DeltaNet::compute_in_fp8(const Fp8Options& /*fp8*/) {
  fail(Code::kBadValue, "train.fp8.attention", "model.delta has no products in 8 bits");
}

at::Tensor DeltaNet::forward(const at::Tensor& x, const AttentionCall& call) {
  TROUPE_CHECK(call.slice == nullptr, "model.delta needs whole rows, which context ranks cut");
  const int64_t G = config_.key_heads, H = config_.value_heads, r = H / G;
  const int64_t d = config_.key_dim, e = config_.value_dim;
  AttentionForm form;
  set_segments(call, form);
  const auto in = qkvz_.forward(x).unflatten(1, {G, -1}).split_with_sizes({d, d, r * e, r * e}, 2);
  const auto ba = ba_.forward(x).unflatten(1, {G, -1}).split_with_sizes({r, r}, 2);
  const at::Tensor mixed = at::cat({in[0].flatten(1), in[1].flatten(1), in[2].flatten(1)}, 1);
  KvCache::States states;
  if (call.cache != nullptr) states = call.cache->states(index_);
  const ShortConvResult conv =
      short_conv(mixed, conv_.value, {.lengths = form.lengths, .before = states.a});
  const auto parts = conv.y_TC.split_with_sizes({G * d, G * d, H * e}, 1);
  const at::ScalarType wide = wide_type(x);
  const at::Tensor beta = at::sigmoid(ba[0].flatten(1).to(wide));
  const at::Tensor g = -at::exp(a_log_.value.to(wide)) *
                       at::softplus(ba[1].flatten(1).to(wide) + dt_bias_.value.to(wide));
  const GatedDeltaResult made =
      gated_delta({parts[0].unflatten(1, {G, d}), parts[1].unflatten(1, {G, d}),
                   parts[2].unflatten(1, {H, e}), g, beta},
                  {.lengths = form.lengths, .state = states.b});
  if (call.cache != nullptr) call.cache->keep_states(index_, {conv.last, made.state});
  const at::Tensor z = in[3].flatten(1).unflatten(1, {H, e}).to(wide);
  const at::Tensor y = (norm_.forward(made.o_THe).to(wide) * at::silu(z)).to(x.scalar_type());
  return out_.forward(y.flatten(1));
}

}  // namespace troupe
