// The formulas of moe_sm90.h in double, with its rounding points.
#include "troupe/kernels/moe_sm90/ref_rows.h"

namespace troupe {
namespace {

double at(const Mat<const BF16>& m, int64_t r, int64_t c) {
  return static_cast<float>(m(r, c));
}

// sum over k < n of a(row_a, k) b(row_b, k); a pad's row (-1) reads as zeros
double dot(const Mat<const BF16>& a, int64_t row_a, const Mat<const BF16>& b, int64_t row_b) {
  double sum = 0;
  for (int64_t k = 0; row_a >= 0 && k < a.cols; ++k) sum += at(a, row_a, k) * at(b, row_b, k);
  return sum;
}

// c[e, m, n] (+)= sum over the expert's rows of a(source_a(r), m) b(source_b(r), n)
struct Outer {
  const PlanRef& plan;
  Mat<const BF16> a, b;
  bool gather_a, gather_b;

  double sum(int64_t e, int64_t m, int64_t n) const {
    double total = 0;
    for (int64_t r = plan.expert_offset[e]; r < plan.expert_offset[e + 1]; ++r) {
      const int64_t source = plan.row_src[r];
      if (source >= 0) total += at(a, gather_a ? source : r, m) * at(b, gather_b ? source : r, n);
    }
    return total;
  }
};

void store(const Outer& outer, const MutRef& out, bool accumulate) {
  const int64_t M = outer.a.cols;
  for (int64_t row = 0; row < out.rows; ++row) {
    for (int64_t n = 0; n < out.cols; ++n) {
      const double sum = outer.sum(row / M, row % M, n);
      if (out.dtype == Dtype::kBF16) {
        out.as<BF16>()(row, n) = rounded(sum);
      } else {
        float& to = out.as<float>()(row, n);
        to = static_cast<float>(accumulate ? to + sum : sum);
      }
    }
  }
}

}  // namespace

void moe_up_sm90_ref(const MoeUpSm90& x) {
  validate(x);
  const auto in = x.x.as<BF16>(), w1 = x.w1.as<BF16>();
  const auto h = x.h.as<BF16>(), a = x.a.as<BF16>();
  const int64_t F = a.cols;
  for_each_row(x.plan, [&](int64_t e, int64_t r) {
    for (int64_t u = 0; u < F; ++u) {
      const int64_t source = x.plan.row_src[r], c = hidden_column(u);
      h(r, c) = rounded(dot(in, source, w1, e * 2 * F + u));
      h(r, c + 2) = rounded(dot(in, source, w1, e * 2 * F + F + u));
      const double g = static_cast<float>(h(r, c)), v = static_cast<float>(h(r, c + 2));
      a(r, u) = rounded(score_of(x.plan, x.score, r) * g * sigmoid(g) * v);
    }
  });
}

void moe_down_sm90_ref(const MoeDownSm90& x) {
  validate(x);
  const auto a = x.a.as<BF16>(), w2 = x.w2.as<BF16>();
  const auto y = x.y.as<BF16>();
  for_each_row(x.plan, [&](int64_t e, int64_t r) {
    for (int64_t d = 0; d < y.cols; ++d) y(r, d) = rounded(dot(a, r, w2, e * y.cols + d));
  });
}

void moe_hidden_grad_sm90_ref(const MoeHiddenGradSm90& x) {
  validate(x);
  const auto grad_out = x.grad_out.as<BF16>(), w2 = x.w2.as<BF16>();
  const int64_t D = grad_out.cols;
  hidden_grad_ref(x, [&](int64_t e, int64_t r, int64_t u) {
    const int64_t source = x.plan.row_src[r];
    double sum = 0;
    for (int64_t d = 0; source >= 0 && d < D; ++d) {
      sum += at(grad_out, source, d) * at(w2, e * D + d, u);
    }
    return sum;
  });
}

void moe_rows_grad_sm90_ref(const MoeRowsGradSm90& x) {
  validate(x);
  const auto grad_h = x.grad_h.as<BF16>(), w1 = x.w1.as<BF16>();
  const auto out = x.grad_rows.as<BF16>();
  const int64_t G = grad_h.cols;
  for_each_row(x.plan, [&](int64_t e, int64_t r) {
    for (int64_t d = 0; d < out.cols; ++d) {
      double sum = 0;
      for (int64_t j = 0; j < G; ++j) sum += at(grad_h, r, j) * at(w1, e * G + j, d);
      out(r, d) = rounded(sum);
    }
  });
}

void moe_down_grad_sm90_ref(const MoeDownGradSm90& x) {
  validate(x);
  store({x.plan, x.grad_out.as<BF16>(), x.a.as<BF16>(), true, false}, x.grad_w2, x.accumulate);
}

void moe_up_grad_sm90_ref(const MoeUpGradSm90& x) {
  validate(x);
  store({x.plan, x.grad_h.as<BF16>(), x.x.as<BF16>(), false, true}, x.grad_w1, x.accumulate);
}

}  // namespace troupe
