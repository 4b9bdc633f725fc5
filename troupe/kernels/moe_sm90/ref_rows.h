// What the references of this folder share: rows of a plan, rounding, the activation's derivative.
#pragma once

#include <cmath>

#include "troupe/core/number/bf16.h"
#include "troupe/kernels/moe_sm90/moe_sm90.h"

namespace troupe {

inline BF16 rounded(double v) {
  return BF16(static_cast<float>(v));
}

inline double sigmoid(double g) {
  return 1 / (1 + std::exp(-g));
}

// f(expert, row)
template <class F>
void for_each_row(const PlanRef& plan, const F& f) {
  for (int64_t e = 0; e < plan.experts; ++e) {
    for (int64_t r = plan.expert_offset[e]; r < plan.expert_offset[e + 1]; ++r) f(e, r);
  }
}

inline float score_of(const PlanRef& plan, const float* score, int64_t r) {
  const int64_t slot = plan.row_slot[r];
  return slot < 0 ? 0.f : score == nullptr ? 1.f : score[slot];
}

// `hidden`: grad_a(e, r, u) is G = (dO W2)[r, u] of expert e. Args: MoeHiddenGradSm90 or
// MoeHiddenGradFp8Sm90.
template <class Args, class GradA>
void hidden_grad_ref(const Args& x, const GradA& grad_a) {
  const auto h = x.h.template as<BF16>();
  const auto grad_h = x.grad_h.template as<BF16>(), a = x.a.template as<BF16>();
  const int64_t F = a.cols, slots = x.plan.tokens * x.plan.choices;
  for (int64_t s = 0; s < slots; ++s) x.grad_score[s] = 0;
  for_each_row(x.plan, [&](int64_t e, int64_t r) {
    const double s = score_of(x.plan, x.score, r);
    double grad_score = 0;
    for (int64_t u = 0; u < F; ++u) {
      const double G = grad_a(e, r, u), g = static_cast<float>(h(r, hidden_column(u)));
      const double v = static_cast<float>(h(r, hidden_column(u) + 2)), p = sigmoid(g);
      grad_score += G * g * p * v;
      grad_h(r, u) = rounded(s * G * v * p * (1 + g * (1 - p)));
      grad_h(r, F + u) = rounded(s * G * g * p);
      a(r, u) = rounded(s * g * p * v);
    }
    if (x.plan.row_slot[r] >= 0) x.grad_score[x.plan.row_slot[r]] = static_cast<float>(grad_score);
  });
}

}  // namespace troupe
