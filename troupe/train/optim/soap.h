// SOAP (Vyas et al., 2024): Adam in the eigenbasis of Shampoo's two factors of a matrix [R, C].
// With g the gradient, t = step - 1, all of one matrix:
//
//   g' = Ql^T g Qr;  m = m + (1 - beta1) (g - m);  m' = Ql^T m Qr;  v = v + (1 - beta2) (g'^2 - v)
//   n  = (m' / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//   p  = (1 - lr weight_decay) p - lr Ql n Qr^T
//   L  = L + (1 - beta2) (g g^T - L);   R = R + (1 - beta2) (g^T g - R)
//   every `every` steps:  Ql = the orthogonal part of L Ql (QR), Qr = that of R Qr
//
// Step 1 makes L and R of its gradient alone and Ql, Qr their eigenvectors; p only decays, so that
// no gradient is turned into a basis of its own, where some of its numbers are but rounding. A side
// that is longer than `max_side` has no factor: its Q is the identity.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/train/optim/optimizer_base.h"

namespace troupe {

struct SoapStep {
  int64_t step = 1;  // from 1
  double lr = 0;
  double weight_decay = 0;
  double beta1 = 0.95;
  double beta2 = 0.95;
  double eps = 1e-8;
  int64_t every = 10;
};

// One side's factor and basis, [N, X, X] each in f32; undefined: the identity.
struct SoapSide {
  at::Tensor factor = {}, basis = {};
};

// N matrices, each on its own, in f32.
struct SoapMatrices {
  at::Tensor p, g, m, v;  // [N, R, C]
  SoapSide left, right;
};
void soap_matrices(const SoapMatrices& x, const SoapStep& s);

struct SoapConfig : AdamWConfig {
  static constexpr std::string_view kKind = "soap";
  static constexpr std::string_view kHelp = "adamw in the eigenbasis of Shampoo's preconditioner";
  static constexpr bool kWholeState = true;
  static constexpr bool kInt8 = false;
  int64_t every = 10;
  int64_t max_side = 10000;
  static void visit(auto& c, auto&& f) {
    AdamWConfig::visit(c, f);
    f("every", c.every, "soap: steps between updates of the eigenbasis.");
    f("max_side", c.max_side, "soap: matrix sides longer than this are not preconditioned.");
  }
  std::unique_ptr<Optimizer> build() const;
  void add_faults(std::vector<std::string>& out) const;
};

}  // namespace troupe
