#include "troupe/nn/parts/lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "troupe/core/check.h"
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
      place(where) {}

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

bool is_adapter(std::string_view name) {
  return name.ends_with("lora_a") || name.ends_with("lora_b");
}

void require_whole(const std::optional<LowBitFormat>& bits, int64_t ranks, const char* what) {
  TROUPE_CHECK(!bits || ranks == 1, "lora.frozen:", ranks, "tensor ranks would cut the matrices of",
               what, ", which are kept in few bits whole: use one tensor rank");
}

}  // namespace troupe
