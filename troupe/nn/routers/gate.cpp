#include "troupe/nn/routers/gate.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <cmath>
#include <string>

#include "troupe/core/rng.h"
#include "troupe/nn/routers/noise.h"
#include "troupe/ops/autograd.h"

namespace troupe {
namespace {

// A tensor core product of bf16 or f16 operands is exact before its f32 sum, so on a GPU they need
// not be widened first.
at::Tensor product(const at::Tensor& x_TD, const at::Tensor& w_ED, at::ScalarType type) {
  const bool half = x_TD.scalar_type() == at::kBFloat16 || x_TD.scalar_type() == at::kHalf;
  if (x_TD.is_cuda() && half && w_ED.scalar_type() == x_TD.scalar_type() && type == at::kFloat) {
    return at::mm(x_TD, w_ED.t(), type);
  }
  return at::mm(x_TD.to(type), w_ED.to(type).t());
}

}  // namespace

at::Tensor router_product(const at::Tensor& x_TD, const at::Tensor& w_ED, at::ScalarType type) {
  at::Tensor z_TE;
  {
    const at::NoGradGuard no_grad;
    z_TE = product(x_TD, w_ED, type);
  }
  record({.name = "router_product",
          .inputs = {x_TD, w_ED},
          .outputs = {z_TE},
          .saved = {x_TD, w_ED},
          .backward = [type](const Gradients& g) -> TensorList {
            const at::Tensor &x = g.saved[0], &w = g.saved[1], &dz = g.outputs[0];
            return {g.needs[0] ? at::mm(dz, w.to(type)).to(x.scalar_type()) : at::Tensor(),
                    g.needs[1] ? at::mm(dz.t(), x.to(type)).to(w.scalar_type()) : at::Tensor()};
          }});
  return z_TE;
}

Gate::Gate(const GateConfig& config, const RouterShape& shape) : config_(config) {
  weight = Param::of({shape.experts, shape.width}, {.kind = Init::kNormal, .std = config.std},
                     Group::kRouter);
  if (config.bias) bias = Param::of({shape.experts}, {.kind = Init::kZero}, Group::kNoDecay);
}

at::Tensor Gate::logits(const at::Tensor& x_TD, const Context& context) const {
  const bool wide = config_.fp64 || x_TD.scalar_type() == at::kDouble;
  const at::ScalarType type = wide ? at::kDouble : at::kFloat;
  const bool jitters = context.training && config_.jitter > 0;
  const at::Tensor seen = jitters ? jittered(x_TD, config_.jitter, context) : x_TD;
  at::Tensor z_TE = router_product(seen, weight.value, type);
  if (bias) z_TE = z_TE + bias->value.to(type);
  return forced(z_TE, context);
}

at::Tensor Gate::forced(const at::Tensor& z_TE, const Context& context) const {
  if (config_.force == Force::kBiased) {
    const int64_t E = z_TE.size(1);
    const Rng rng(context.seed, stream_of("force_biased." + std::to_string(context.layer)));
    const uint64_t step = config_.force_fixed ? 0 : static_cast<uint64_t>(context.step);
    at::Tensor add = at::empty({E}, at::kFloat);
    for (int64_t e = 0; e < E; ++e) {
      add.mutable_data_ptr<float>()[e] =
          static_cast<float>(config_.force_std) * rng.normal(step, static_cast<uint32_t>(e));
    }
    return z_TE + add.to(z_TE.options().requires_grad(false));
  }
  if (config_.force != Force::kRandom) return z_TE;
  // Uniform in (-1, 1) to normal; the sum has z's gradient and not its value.
  const at::Tensor u =
      uniform_noise("force_random", z_TE.size(0), z_TE.size(1), context, z_TE.device()) * 2 - 1;
  const at::Tensor noise = u.clamp(-1 + 0x1p-23, 1 - 0x1p-23).erfinv() * std::sqrt(2.0);
  return z_TE + (noise.to(z_TE.scalar_type()) - z_TE.detach());
}

at::Tensor Gate::forced_ids(const at::Tensor& z_TE, int64_t top_k, const Context& context) const {
  if (config_.force != Force::kUniform) return {};
  const int64_t T = z_TE.size(0), E = z_TE.size(1);
  const auto longs = z_TE.options().dtype(at::kLong).requires_grad(false);
  const at::Tensor slot = at::arange(T * top_k, longs) + context.first_token * top_k;
  return slot.remainder(E).reshape({T, top_k}).to(at::kInt);
}

}  // namespace troupe
