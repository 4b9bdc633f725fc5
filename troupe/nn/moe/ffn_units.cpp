#include "troupe/nn/moe/ffn_units.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include <cmath>

#include "troupe/core/check.h"

namespace troupe {
namespace {

at::Tensor activate(const at::Tensor& g, const std::string& name) {
  if (name == "silu") return at::silu(g);
  if (name == "gelu") return at::gelu(g);
  if (name == "gelu_tanh") return at::gelu(g, "tanh");
  if (name == "quick_gelu") return g * at::sigmoid(1.702 * g);
  if (name == "relu") return at::relu(g);
  TROUPE_CHECK(name == "relu2", "no activation", name);
  return at::relu(g).square();
}

}  // namespace

at::Tensor ffn_units(const at::Tensor& h, bool gated, const FfnOptions& o) {
  const bool clamps = std::isfinite(o.clamp);
  const at::Tensor g = gated ? h.chunk(2, 1)[0] : h;
  at::Tensor act = activate(clamps ? g.clamp_max(o.clamp) : g, o.activation);
  if (!gated) return act;
  const at::Tensor v = h.chunk(2, 1)[1];
  return act * ((clamps ? v.clamp(-o.clamp, o.clamp) : v) + o.offset);
}

}  // namespace troupe
