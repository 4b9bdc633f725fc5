#include "troupe/train/optim/soap.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>

#include <cmath>

namespace troupe {
namespace {

at::Tensor transposed(const at::Tensor& x) {
  return x.transpose(-2, -1);
}

// Ql^T x Qr, or (back) Ql x Qr^T.
at::Tensor rotated(const at::Tensor& x, const SoapSide& left, const SoapSide& right, bool back) {
  at::Tensor out = x;
  if (left.basis.defined()) out = at::matmul(back ? left.basis : transposed(left.basis), out);
  if (right.basis.defined()) out = at::matmul(out, back ? transposed(right.basis) : right.basis);
  return out;
}

void add_to_factors(const at::Tensor& g, const SoapSide& left, const SoapSide& right, double w) {
  if (left.factor.defined()) left.factor.lerp_(at::matmul(g, transposed(g)), w);
  if (right.factor.defined()) right.factor.lerp_(at::matmul(transposed(g), g), w);
}

void refresh(const SoapSide& side, bool first) {
  if (!side.factor.defined()) return;
  side.basis.copy_(first ? std::get<1>(at::linalg_eigh(side.factor))
                         : std::get<0>(at::linalg_qr(at::matmul(side.factor, side.basis))));
}

}  // namespace

void soap_matrices(const SoapMatrices& x, const SoapStep& s) {
  const auto& [p, g, m, v, left, right] = x;
  if (p.numel() == 0) return;
  const bool first = s.step == 1;
  p.mul_(1 - s.lr * s.weight_decay);
  if (!first) {
    m.lerp_(g, 1 - s.beta1);
    v.lerp_(rotated(g, left, right, false).square(), 1 - s.beta2);
    const auto t = static_cast<double>(s.step - 1);
    const double unbias1 = 1 / (1 - std::pow(s.beta1, t)), unbias2 = 1 / (1 - std::pow(s.beta2, t));
    const at::Tensor n =
        rotated(m, left, right, false).mul(unbias1).div_((v * unbias2).sqrt_().add_(s.eps));
    p.sub_(rotated(n, left, right, true), s.lr);
  }
  add_to_factors(g, left, right, 1 - s.beta2);
  if (!first && s.step % s.every != 0) return;
  refresh(left, first);
  refresh(right, first);
}

}  // namespace troupe
