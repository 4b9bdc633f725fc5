#include "troupe/train/optim/adafactor.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

namespace troupe {
namespace {

constexpr double kEps = 0x1p-23;

double weight(const AdafactorStep& s) {
  return std::pow(static_cast<double>(s.step), s.beta2_decay);
}

at::Tensor rms(const at::Tensor& x) {  // of each matrix, [N, 1, 1]
  return x.square().mean({1, 2}, /*keepdim=*/true).sqrt_();
}

// `u` begins as V.
void apply(const at::Tensor& p, const at::Tensor& g, at::Tensor u, const AdafactorStep& s) {
  u.clamp_min_(kEps * kEps).rsqrt_().mul_(g);
  const double rho = std::min(s.lr, 1 / std::sqrt(static_cast<double>(s.step)));
  const at::Tensor rate = rms(p).clamp_min_(s.eps).mul_(rho);
  const at::Tensor over = rms(u).div_(s.clip).clamp_min_(1);
  p.mul_(1 - s.lr * s.weight_decay).sub_(u.mul_(rate / over));
}

}  // namespace

void adafactor_matrices(const at::Tensor& p, const at::Tensor& g, const at::Tensor& row,
                        const at::Tensor& column, const AdafactorStep& s) {
  if (p.numel() == 0) return;
  const at::Tensor square = g.square();
  row.lerp_(square.mean(2), weight(s));
  column.lerp_(square.mean(1), weight(s));
  const at::Tensor mean = row.mean(1, /*keepdim=*/true).clamp_min_(kEps);
  apply(p, g, (row / mean).unsqueeze(2) * column.unsqueeze(1), s);
}

void adafactor_vectors(const at::Tensor& p, const at::Tensor& g, const at::Tensor& variance,
                       const AdafactorStep& s) {
  if (p.numel() == 0) return;
  variance.lerp_(g.squeeze(1).square(), weight(s));
  apply(p, g, variance.unsqueeze(1).clone(), s);
}

}  // namespace troupe
