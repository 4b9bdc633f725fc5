// Rounding to e4m3 in groups with power-of-two scales, by PyTorch's own type and frexp: nothing of
// kernels/fp8. For tests of products with 8-bit operands.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/ldexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace troupe {

inline constexpr int64_t kTile = 128;

// `groups` [G, n]: a scale a row. What is above 448 scales becomes that: PyTorch's type has NaN there.
struct Rounded {
  at::Tensor unscaled, scale;  // [G, n], [G, 1]
  at::Tensor value() const { return unscaled * scale; }
};
inline Rounded round_by(const at::Tensor& groups, const at::Tensor& most) {
  const auto [fraction, exponent] = at::frexp(most);  // most = fraction 2^exponent
  const at::Tensor shift = exponent - 9 + fraction.gt(0.875).to(at::kInt);
  const at::Tensor one = at::ones_like(most),
                   scale = at::where(most.eq(0), one, at::ldexp(one, shift));
  const at::Tensor inside = (groups / scale).clamp(-448, 448);
  return {inside.to(at::kFloat).to(at::kFloat8_e4m3fn).to(at::kDouble), scale};
}
inline Rounded round_groups(const at::Tensor& groups) {
  return round_by(groups, groups.abs().amax(1, /*keepdim=*/true));
}
// With the scale of this number, [].
inline Rounded round_whole(const at::Tensor& x, const at::Tensor& most) {
  return round_by(x, most.expand({x.size(0), 1}));
}

// Tiles of `rows` x `columns`, cut off at the ends.
inline at::Tensor in_tiles(const at::Tensor& x, int64_t rows, int64_t columns) {
  at::Tensor out = at::zeros_like(x);
  for (int64_t r = 0; r < x.size(0); r += rows) {
    for (int64_t c = 0; c < x.size(1); c += columns) {
      const at::Tensor part = x.slice(0, r, r + rows).slice(1, c, c + columns);
      out.slice(0, r, r + rows).slice(1, c, c + columns) =
          round_groups(part.reshape({1, -1})).value().view(part.sizes());
    }
  }
  return out;
}
inline at::Tensor blocks(const at::Tensor& x) {
  return in_tiles(x, kTile, kTile);
}
inline at::Tensor tiles(const at::Tensor& x) {
  return in_tiles(x, 1, kTile);
}

// In norm, relative.
inline double distance(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor w = want.to(at::kDouble);
  return ((got.to(at::kDouble) - w).norm() / w.norm()).item<double>();
}

}  // namespace troupe
