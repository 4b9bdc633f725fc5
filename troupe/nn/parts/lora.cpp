#include "troupe/nn/parts/lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/nn/parts/kept_matrix.h"
#include "troupe/nn/parts/linear_product.h"

namespace troupe {

double LoraConfig::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}

LoraConfig ModelLora::of(LoraTarget target) const {
  const bool adapted = std::find(targets.begin(), targets.end(), target) != targets.end();
  return adapted ? factors : LoraConfig{};
}

std::optional<LowBitFormat> ModelLora::bits_of(LoraTarget target) const {
  if (!on() || !frozen || std::ranges::count(frozen->targets, target) == 0) return std::nullopt;
  return frozen->format;
}

namespace {

bool& adapters_are_off() {
  thread_local bool off = false;
  return off;
}

at::ScalarType wide(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor row_squares(const at::Tensor& w) {
  return w.to(wide(w)).square().sum(1);
}

}  // namespace

WithoutAdapters::WithoutAdapters() : before_(std::exchange(adapters_are_off(), true)) {}

WithoutAdapters::~WithoutAdapters() {
  adapters_are_off() = before_;
}

double WithoutAdapters::scale(double own) {
  return adapters_are_off() ? 0 : own;
}

Init lora_a_init() {
  return {.kind = Init::kKaimingUniform};
}

Init lora_b_init() {
  return {.kind = Init::kZero};
}

LoraFactors::LoraFactors(const LoraConfig& config, int64_t out, int64_t in, DropPlace where)
    : a(Param::of({config.rank, in}, lora_a_init())),
      b(Param::of({out, config.rank}, lora_b_init())),
      scale(config.scale()),
      drop(config.dropout),
      place(where) {
  if (config.dora) m = Param::of({out}, lora_b_init(), Group::kNoDecay);
}

// Columns of x that other ranks have are drawn too, so that each has the mask of its own.
at::Tensor LoraFactors::dropped(const at::Tensor& x, const Context& context) const {
  const int64_t from = a.offset[1], own = a.size[1], all = a.global[1];
  if (own == all) return dropout(x, drop, place, context);
  if (!context.training || drop <= 0) return x;
  const at::Tensor ones = at::ones({x.numel() / own, all}, x.options().requires_grad(false));
  return x * dropout(ones, drop, place, context).narrow(1, from, own).reshape(x.sizes());
}

at::Tensor LoraFactors::delta(const at::Tensor& x, const Context& context) const {
  const at::Tensor low = linear_product(dropped(x, context), a.value);
  return linear_product(low * WithoutAdapters::scale(scale), b.value);
}

at::Tensor LoraFactors::delta_in(at::ScalarType type, const at::Tensor& x,
                                 const Context& context) const {
  const at::Tensor seen = dropped(x, context).to(type);
  const at::Tensor low = at::linear(seen, a.value.to(type)) * WithoutAdapters::scale(scale);
  return at::linear(low, b.value.to(type));
}

// ||W + s B A||^2 = ||W||^2 + 2 s (W A^T) . B + s^2 (B A A^T) . B, row by row.
at::Tensor LoraFactors::row_factors(const at::Tensor& w) const {
  const at::ScalarType type = wide(w);
  at::Tensor own, both;
  {
    const at::NoGradGuard constants;
    const at::Tensor A = a.value.to(type), B = b.value.to(type);
    own = row_squares(w);
    const at::Tensor cross = (at::mm(w, a.value.to(w.scalar_type()).t()).to(type) * B).sum(1);
    const at::Tensor low = (at::mm(B, at::mm(A, A.t())) * B).sum(1);
    both = (own + 2 * scale * cross + scale * scale * low).sqrt();
    own = own.sqrt();
  }
  return (own + m->value.reshape({-1}).to(type)) / both;
}

at::Tensor LoraFactors::beside(const KeptMatrix& w, const at::Tensor& x, const at::Tensor& y,
                               const at::Tensor& bias, const Context& context) const {
  if (!m) return y + delta(x, context);
  if (WithoutAdapters::scale(1) == 0) return y;
  const at::Tensor seen = dropped(x, context);
  const at::Tensor base = !seen.is_same(x) ? w.linear(seen) : bias.defined() ? y - bias : y;
  const at::Tensor low = linear_product(linear_product(seen, a.value) * scale, b.value);
  const at::Tensor g = row_factors(w.whole());
  return y + base * (g - 1).to(y.scalar_type()) + low * g.to(y.scalar_type());
}

at::Tensor row_norms(const at::Tensor& w) {
  return row_squares(w).sqrt();
}

bool is_adapter(std::string_view name) {
  return name.ends_with("lora_a") || name.ends_with("lora_b") || name.ends_with("lora_m");
}

void require_whole(const LoraFactors& factors, int64_t ranks) {
  TROUPE_CHECK(!factors.m || ranks == 1, "lora.dora:", ranks, "tensor ranks would cut rows whose",
               "norms are trained: use one tensor rank");
}

void require_whole(const std::optional<LowBitFormat>& bits, int64_t ranks, const char* what) {
  TROUPE_CHECK(!bits || ranks == 1, "lora.frozen:", ranks, "tensor ranks would cut the matrices of",
               what, ", which are kept in few bits whole: use one tensor rank");
}

}  // namespace troupe
