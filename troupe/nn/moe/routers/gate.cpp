#include "troupe/nn/moe/routers/gate.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include "troupe/core/check.h"
#include "troupe/ops/jitter.h"
#include "troupe/ops/support/autograd.h"

namespace troupe {
namespace {

// A tensor core product of bf16 or f16 operands is exact before its f32 sum, so on a GPU they need
// not be widened first.
bool is_mixed(const at::Tensor& x_TD, const at::Tensor& w_ED, at::ScalarType type) {
  const bool half = x_TD.scalar_type() == at::kBFloat16 || x_TD.scalar_type() == at::kHalf;
  return x_TD.is_cuda() && half && w_ED.scalar_type() == x_TD.scalar_type() && type == at::kFloat;
}

at::Tensor product(const at::Tensor& x_TD, const at::Tensor& w_ED, at::ScalarType type) {
  if (is_mixed(x_TD, w_ED, type)) return at::mm(x_TD, w_ED.t(), type);
  return at::mm(x_TD.to(type), w_ED.to(type).t());
}

// sum + a b, rounded once; in place if nothing else refers to `sum`.
at::Tensor plus_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  const bool ours = sum.use_count() == 1 && sum.storage().use_count() == 1 && !sum.is_view();
  return ours ? at::addmm_out(const_cast<at::Tensor&>(sum), sum, a, b) : at::addmm(sum, a, b);
}

// dx = dz W + what else came for x, and dW = dz^T x. Beside bf16 operands on a GPU dz goes in as
// two bf16 terms, its value rounded and what that left over: 16 bits of it in tensor cores, in
// place of f32 copies of x.
TensorList product_backward(const Gradients& g) {
  const at::Tensor &dz = g.outputs[0], &x = g.saved[0], &w = g.saved[1];
  const at::ScalarType type = dz.scalar_type();
  const bool joins = g.outputs.size() > 1;
  const auto grad_x = [&](const at::Tensor& a, const at::Tensor& b) {
    if (joins && a.scalar_type() == x.scalar_type()) return plus_product(g.outputs[1], a, b);
    const at::Tensor own = at::mm(a, b).to(x.scalar_type());
    return joins ? own + g.outputs[1] : own;
  };
  if (!is_mixed(x, w, type) || x.scalar_type() != at::kBFloat16) {
    return {g.needs[0] ? grad_x(dz, w.to(type)) : at::Tensor(),
            g.needs[1] ? at::mm(dz.t(), x.to(type)).to(w.scalar_type()) : at::Tensor()};
  }
  const at::Tensor high = dz.to(at::kBFloat16), low = (dz - high).to(at::kBFloat16);
  const at::Tensor both = at::cat({high, low}, 1);
  TensorList out(2);
  if (g.needs[0]) out[0] = grad_x(both, at::cat({w, w}, 0));
  if (g.needs[1]) {
    out[1] = at::mm(both.t(), x, type).view({2, w.size(0), w.size(1)}).sum(0).to(w.scalar_type());
  }
  return out;
}

NoisePlace place_of(const Context& c) {
  return {.key = {.seed = c.seed, .step = c.step, .layer = c.layer},
          .first_token = c.first_token,
          .index_T = c.index_T};
}

}  // namespace

Gated router_product(const at::Tensor& x_TD, const at::Tensor& w_ED, at::ScalarType type) {
  Gated out{.z_TE = {}, .x_TD = x_TD};
  {
    const at::NoGradGuard no_grad;
    out.z_TE = product(x_TD, w_ED, type);
  }
  const bool joins = wants_grad({x_TD});
  if (joins) out.x_TD = x_TD.variable_data();  // the same memory, no view in autograd's sense
  record({.name = "router_product",
          .inputs = {x_TD, w_ED},
          .outputs = joins ? TensorList{out.z_TE, out.x_TD} : TensorList{out.z_TE},
          .saved = {x_TD, w_ED},
          .backward = product_backward});
  return out;
}

Gate::Gate(const GateConfig& config, const RouterShape& shape) : config_(config) {
  if (!(config.jitter >= 0 && config.jitter < 1) || !(config.force_std >= 0)) {
    fail(Code::kBadValue, "model.moe.router", "jitter is", config.jitter, "and force_std is",
         config.force_std, "; jitter must be in [0, 1) and force_std be 0 or more");
  }
  weight = Param::of({shape.experts, shape.width}, {.kind = Init::kNormal, .std = config.std},
                     Group::kRouter);
  if (config.bias) bias = Param::of({shape.experts}, {.kind = Init::kZero}, Group::kNoDecay);
  if (config.lora.on()) {
    lora.emplace(config.lora, shape.experts, shape.width, DropPlace::kRouter);
  }
}

Gated Gate::logits(const at::Tensor& x_TD, const Context& context) const {
  const bool wide = config_.fp64 || x_TD.scalar_type() == at::kDouble;
  const at::ScalarType type = wide ? at::kDouble : at::kFloat;
  const bool jitters = context.training && config_.jitter > 0;
  const at::Tensor seen = jitters ? jitter(x_TD, config_.jitter, place_of(context)) : x_TD;
  Gated out = router_product(seen, weight.value, type);
  if (lora) out.z_TE = out.z_TE + lora->delta_in(type, seen, context);
  if (bias) out.z_TE = out.z_TE + bias->value.to(type);
  if (out.z_TE.is_cuda()) out.z_TE = out.z_TE.to(at::kFloat);
  out.z_TE = forced(out.z_TE, context);
  if (jitters) out.x_TD = x_TD;
  return out;
}

at::Tensor Gate::forced(const at::Tensor& z_TE, const Context& context) const {
  if (config_.force == Force::kBiased) {
    NoisePlace place = place_of(context);
    place.first_token = 0;  // one vector for all tokens
    place.index_T.reset();
    if (config_.force_fixed) place.key.step = 0;
    const at::Tensor like = at::empty({1, z_TE.size(1)}, z_TE.options().requires_grad(false));
    return z_TE + normal_noise(like, config_.force_std, "force_biased", place);
  }
  if (config_.force != Force::kRandom) return z_TE;
  at::Tensor noise = normal_noise(z_TE, 1, "force_random", place_of(context));
  record({.name = "force_random",
          .inputs = {z_TE},
          .outputs = {noise},
          .saved = {},
          .backward = [](const Gradients& g) -> TensorList { return {g.outputs[0]}; }});
  return noise;
}

at::Tensor Gate::forced_ids(const at::Tensor& z_TE, int64_t top_k, const Context& context) const {
  if (config_.force != Force::kUniform) return {};
  const int64_t T = z_TE.size(0), E = z_TE.size(1);
  const auto longs = z_TE.options().dtype(at::kLong).requires_grad(false);
  at::Tensor slot = at::arange(T * top_k, longs);
  if (context.index_T.defined()) {
    const at::Tensor k = at::arange(top_k, longs);
    slot = context.index_T.unsqueeze(1) * top_k + k;
  } else {
    slot += context.first_token * top_k;
  }
  return slot.remainder(E).reshape({T, top_k}).to(at::kInt);
}

}  // namespace troupe
