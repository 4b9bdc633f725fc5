#include "troupe/distributed/params/param.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "troupe/core/check.h"
#include "troupe/core/number/rng.h"
#include "troupe/ops/support/run.h"

namespace troupe {
namespace {

constexpr int64_t kPiece = int64_t{4} << 20;  // elements drawn before they are copied: 16 MiB

int64_t product(const std::vector<int64_t>& sizes, size_t from = 0) {
  return std::accumulate(sizes.begin() + static_cast<int64_t>(from), sizes.end(), int64_t{1},
                         std::multiplies<>());
}

// What a draw is multiplied by.
double scale_of(const Param& p) {
  if (p.init.kind == Init::kNormal) return p.init.std;
  if (p.init.kind == Init::kLogDecay) return 1;
  const int64_t fan_in = p.init.fan_in > 0 ? p.init.fan_in : p.global.back();
  const double variance = p.init.kind == Init::kKaiming ? 2.0 : 1.0;
  return std::sqrt(variance / static_cast<double>(fan_in));
}

// One element: the first draw inside the bounds. A draw is outside 3 standard deviations with
// probability 0.0027, so 64 tries fail once in 10^164.
float draw(const Rng& rng, uint64_t index, const Init& init) {
  if (init.kind == Init::kKaimingUniform) return 2 * rng.uniform(index) - 1;
  if (init.kind == Init::kLogDecay) return std::log(0.01F + 15.99F * rng.uniform(index));
  const double truncate = init.truncate;
  float x = rng.normal(index);
  for (uint32_t again = 1; truncate > 0 && std::abs(x) > truncate && again < 64; ++again) {
    x = rng.normal(index, again);
  }
  return x;
}

// The box of one tensor, by runs along its last dimension: where a run's elements are in the global
// tensor.
class Box {
 public:
  Box(const Param& p, size_t first_dim) : p_(p), first_(first_dim) {}

  int64_t run() const { return first_ < p_.size.size() ? p_.size.back() : 1; }
  int64_t runs() const { return run() == 0 ? 0 : product(p_.size, first_) / run(); }

  uint64_t global_index(int64_t r) const {
    uint64_t index = 0, stride = 1;
    for (size_t d = p_.size.size(); d-- > first_;) {
      int64_t at = 0;
      if (d + 1 < p_.size.size()) {
        at = r % p_.size[d];
        r /= p_.size[d];
      }
      at += p_.offset[d];
      if (d == first_ && p_.init.repeat > 1) at /= p_.init.repeat;
      index += static_cast<uint64_t>(at) * stride;
      stride *= static_cast<uint64_t>(p_.global[d]);
    }
    return index;
  }

 private:
  const Param& p_;
  size_t first_;
};

void draw_box(const Param& p, size_t first_dim, const Rng& rng, at::Tensor flat) {
  const Box box(p, first_dim);
  const double scale = scale_of(p);
  const int64_t run = box.run(), step = std::max<int64_t>(1, kPiece / std::max<int64_t>(run, 1));
  for (int64_t begin = 0; begin < box.runs(); begin += step) {
    const int64_t end = std::min(box.runs(), begin + step);
    at::Tensor piece = at::empty({(end - begin) * run}, at::kFloat);
    auto* const out = piece.mutable_data_ptr<float>();
    torch_pool()(end - begin, std::max<int64_t>(1, 4096 / std::max<int64_t>(run, 1)),
                 [&](int64_t from, int64_t to) {
                   for (int64_t r = from; r < to; ++r) {
                     const uint64_t at = box.global_index(begin + r);
                     for (int64_t i = 0; i < run; ++i) {
                       out[r * run + i] = static_cast<float>(scale) *
                                          draw(rng, at + static_cast<uint64_t>(i), p.init);
                     }
                   }
                 });
    flat.narrow(0, begin * run, (end - begin) * run).copy_(piece);
  }
}

// The tensor of this name, the whole or an expert's, from its first element on.
void draw_part(const Param& p, const std::string& own, uint64_t seed, const at::Tensor& flat) {
  if (p.init.kind == Init::kZero || p.init.kind == Init::kOne) {
    flat.fill_(p.init.kind == Init::kOne ? 1 : 0);
    return;
  }
  draw_box(p, p.per_expert ? 1 : 0, Rng(seed, stream_of(own)), flat);
}

// `one`: of a row. Zeros of as many rows as the sizes say.
at::Tensor rows_of_zeros(const at::Tensor& one, std::vector<int64_t> sizes) {
  sizes.back() = one.size(-1);
  return at::zeros(sizes, one.options());
}

}  // namespace

Param Param::of(std::vector<int64_t> global, Init init, Group group) {
  Param p;
  p.offset.assign(global.size(), 0);
  p.size = p.shown = global;
  p.global = std::move(global);
  p.init = init;
  p.group = group;
  return p;
}

Param Param::of_experts(std::vector<int64_t> global, Init init, const HeldExperts& held) {
  Param p = of(std::move(global), init);
  p.per_expert = true;
  if (held) {
    p.experts = *held;
    p.splits.push_back({0, Axis::kExpert});
  } else {
    p.experts.resize(p.global[0]);
    std::iota(p.experts.begin(), p.experts.end(), 0);
  }
  for (const int64_t e : p.experts) {
    TROUPE_CHECK(0 <= e && e < p.global[0], "expert", e, "of", p.global[0]);
  }
  p.size[0] = p.shown[0] = static_cast<int64_t>(p.experts.size());
  return p;
}

Param&& Param::showing(std::vector<int64_t> sizes) && {
  TROUPE_CHECK(product(sizes) == numel(), "a parameter of", numel(), "elements shown as",
               product(sizes));
  shown = std::move(sizes);
  return std::move(*this);
}

Param&& Param::as_state() && {
  group = Group::kState;
  frozen = fp32 = true;
  return std::move(*this);
}

void Param::keep_in(const std::optional<LowBitFormat>& format) {
  if (!format) return;
  TROUPE_CHECK(!value.defined(), "a format is chosen before the value is made");
  frozen = true;
  low_bit = LowBitValue{.format = *format};
}

void Param::take_box(int64_t dim, int64_t from, int64_t length, Axis axis, int64_t repeat) {
  const auto d = static_cast<size_t>(dim);
  TROUPE_CHECK(d < size.size() && 0 <= from && 0 <= length && from + length <= size[d], "dimension",
               dim, "from", from, "length", length);
  TROUPE_CHECK(size[d] > 0, "dimension", dim, "of a box is empty: it has no parts");
  TROUPE_CHECK(!(per_expert && dim == 0), "experts are taken by of_experts()");
  TROUPE_CHECK(!value.defined(), "a box is taken before the value is made");
  // The shown dimension that holds this one: gate and up halves are merged with their columns.
  size_t s = 0;
  const int64_t merged = product(shown) == 0 ? 1 : product(size, d) / size[d];
  for (s = 0; s < shown.size() && product(shown, s + 1) != merged; ++s) {
  }
  TROUPE_CHECK(s < shown.size(), "dimension", dim, "is not the innermost of a shown one");
  shown[s] = shown[s] / size[d] * length;
  offset[d] += from;
  size[d] = length;
  splits.push_back({dim, axis, repeat});
}

int64_t Param::tensor_repeat(int64_t ranks) const {
  for (const Split& split : splits) {
    if (split.axis == Axis::kTensor) return split.repeat;
  }
  return ranks;
}

int64_t Param::numel() const {
  return product(size);
}

void Param::allocate(const at::TensorOptions& options) {
  if (low_bit) {
    const LowBit row =
        low_bit_pack(at::zeros({1, shown.back()}, options.dtype(at::kFloat)), low_bit->format);
    low_bit->packed = {rows_of_zeros(row.values, shown), rows_of_zeros(row.scales, shown)};
    return;
  }
  value = at::empty(shown, fp32 ? options.dtype(at::kFloat) : options);
  value.set_requires_grad(trainable());
}

void Param::pack(int64_t from, const at::Tensor& numbers) {
  const int64_t K = shown.back(), row = from / K, rows = numbers.numel() / K;
  TROUPE_CHECK(low_bit && allocated(), "a value in few bits is packed before it was made");
  TROUPE_CHECK(from % K == 0 && numbers.numel() % K == 0, "elements from", from, "and",
               numbers.numel(), "of them are no whole rows of", K);
  LowBit& all = low_bit->packed;
  const at::Tensor wide = numbers.detach().view({rows, K}).to(all.values.device(), at::kFloat);
  const LowBit piece = low_bit_pack(wide, low_bit->format);
  const auto place = [&](const at::Tensor& to, const at::Tensor& x) {
    to.view({-1, to.size(-1)}).narrow(0, row, rows).copy_(x);
  };
  place(all.values, piece.values);
  place(all.scales, piece.scales);
}

std::vector<at::Tensor> Param::stored() const {
  if (!low_bit) return {value};
  return {low_bit->packed.values, low_bit->packed.scales};
}

std::string expert_name(std::string_view name, int64_t expert) {
  const size_t dot = name.rfind('.');
  const std::string folder(dot == std::string_view::npos ? "" : name.substr(0, dot + 1));
  const std::string_view leaf = dot == std::string_view::npos ? name : name.substr(dot + 1);
  return folder + std::to_string(expert) + '.' + std::string(leaf);
}

void initialize(Param& p, const std::string& name, uint64_t seed) {
  if (!p.allocated()) p.allocate(at::TensorOptions(at::kFloat));
  const at::NoGradGuard no_grad;
  TROUPE_CHECK(p.low_bit || p.value.is_contiguous(), name, "must be contiguous");
  const int64_t parts = p.per_expert ? static_cast<int64_t>(p.experts.size()) : 1;
  const int64_t each = product(p.size, p.per_expert ? 1 : 0);
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t expert = p.per_expert && !p.init.same_experts ? p.experts[i] : 0;
    const std::string own = p.per_expert ? expert_name(name, expert) : name;
    if (p.low_bit) {
      const at::Tensor numbers = at::empty({each}, at::kFloat);
      draw_part(p, own, seed, numbers);
      p.pack(i * each, numbers);
    } else {
      draw_part(p, own, seed, p.value.detach().view(-1).narrow(0, i * each, each));
    }
  }
}

}  // namespace troupe
