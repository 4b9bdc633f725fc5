// The contract, and the reference: written to be read beside the formula, not to be fast.
#include "troupe/kernels/activation/activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace troupe {
namespace {

double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

// The formulas of rule X3, in the standard library's functions and none of ours.
ValueSlope<double> act_ref(Act act, double g) {
  switch (act) {
    case Act::kSilu: {
      const double p = logistic(g);
      return {g * p, p + g * (p * (1 - p))};
    }
    case Act::kGelu: {
      const double cdf = 0.5 * std::erfc(-g / std::numbers::sqrt2);
      const double density = std::exp(-g * g / 2) / std::sqrt(2 * std::numbers::pi);
      return {g * cdf, cdf + g * density};
    }
    case Act::kGeluTanh: {
      const double c = std::sqrt(2 / std::numbers::pi), y = c * (g + 0.044715 * g * g * g);
      const double p = logistic(2 * y), pq = p * logistic(-2 * y);  // (1 + tanh y) / 2
      return {g * p, p + (pq == 0 ? 0 : g * pq * 2 * c * (1 + 3 * 0.044715 * g * g))};
    }
    case Act::kQuickGelu: {
      const double p = logistic(1.702 * g);
      return {g * p, p + 1.702 * g * (p * (1 - p))};
    }
    case Act::kRelu: return {std::max(g, 0.0), g > 0 ? 1.0 : 0.0};
    case Act::kRelu2: return {std::max(g, 0.0) * std::max(g, 0.0), 2 * std::max(g, 0.0)};
  }
  TROUPE_CHECK(false, "no activation of number", static_cast<int>(act));
}

GluUnit<double> unit_ref(const ActivationKind& kind, bool gated, double g, double v) {
  const double m = kind.clamp;
  const auto [value, slope] = act_ref(kind.act, std::min(g, m));
  const double w = gated ? std::clamp(v, -m, m) + kind.offset : 1;
  return {value * w, g <= m ? slope * w : 0, std::abs(v) <= m ? value : 0};
}

int64_t rows_in_use(const int32_t* expert_offset, int64_t num_experts, int64_t rows) {
  return expert_offset == nullptr ? rows : expert_offset[num_experts];
}

double score_of(const MatRef& score, int64_t r) {
  if (score.data == nullptr) return 1;
  return score.dtype == Dtype::kF64 ? score.as<double>()(r, 0) : score.as<float>()(r, 0);
}

void check_score(const char* what, const MatRef& score, const MatRef& h) {
  if (score.data != nullptr) check_matrix(score, what, h.rows, 1, wide(h.dtype));
}

// What both directions share: h's shape against F, the limits, the row bound.
template <class Args>
void check_common(const Args& a, int64_t num_units) {
  TROUPE_CHECK(a.h.cols == num_units || a.h.cols == 2 * num_units, "h has", a.h.cols,
               "columns, and must have F or 2 F of F =", num_units);
  check_matrix(a.h, "h", a.h.rows, a.h.cols, a.h.dtype);
  check_score("score", a.score, a.h);
  TROUPE_CHECK(a.kind.clamp > 0, "clamp", a.kind.clamp);
  TROUPE_CHECK(std::isfinite(a.kind.offset), "offset", a.kind.offset);
  TROUPE_CHECK(a.kind.offset == 0 || a.h.cols != num_units || num_units == 0, "offset",
               a.kind.offset, "without a gate");
  TROUPE_CHECK(static_cast<int>(a.kind.act) < kNumActs, "activation", static_cast<int>(a.kind.act));
  TROUPE_CHECK(a.expert_offset == nullptr || a.num_experts > 0, "experts", a.num_experts);
}

}  // namespace

const char* name(Act act) {
  switch (act) {
#define TROUPE_ACT_NAME(Type, text) \
  case Act::k##Type: return text;
    TROUPE_ACTIVATIONS(TROUPE_ACT_NAME)
#undef TROUPE_ACT_NAME
  }
  return "?";
}

Act act_of_name(std::string_view wanted) {
  std::string known;
  for (int i = 0; i < kNumActs; ++i) {
    const Act act = static_cast<Act>(i);
    if (wanted == name(act)) return act;
    known += std::string(" ") + name(act);
  }
  TROUPE_CHECK(false, "no activation is named", std::string(wanted) + "; there are" + known);
}

void validate(const Activation& a) {
  check_common(a, a.u.cols);
  check_matrix(a.u.read(), "u", a.h.rows, a.u.cols, a.h.dtype);
}

void validate(const ActivationBackward& a) {
  check_common(a, a.grad_u.cols);
  check_matrix(a.grad_u, "grad_u", a.h.rows, a.grad_u.cols, a.h.dtype);
  check_matrix(a.grad_h.read(), "grad_h", a.h.rows, a.h.cols, a.h.dtype);
  check_score("grad_score", a.grad_score.read(), a.h);
  if (a.u.data != nullptr) {
    check_matrix(a.u.read(), "u", a.h.rows, a.grad_u.cols, a.h.dtype);
  }
}

int64_t bytes_moved(const Activation& a) {
  const int64_t score = a.score.data == nullptr ? 0 : size_bytes(a.score.dtype);
  return a.h.rows * ((a.h.cols + a.u.cols) * size_bytes(a.h.dtype) + score);
}

int64_t bytes_moved(const ActivationBackward& a) {
  const int64_t units = a.grad_u.cols + (a.u.data == nullptr ? 0 : a.u.cols);
  const int64_t scores = (a.score.data != nullptr) + (a.grad_score.data != nullptr);
  return a.h.rows *
         ((2 * a.h.cols + units) * size_bytes(a.h.dtype) + scores * size_bytes(wide(a.h.dtype)));
}

void activation_ref(const Activation& a) {
  validate(a);
  const int64_t rows = rows_in_use(a.expert_offset, a.num_experts, a.h.rows), F = a.u.cols;
  const bool gated = a.h.cols != F;
  dispatch_float64(a.h.dtype, [&]<class T>() {
    const auto h = a.h.as<T>();
    const auto u = a.u.as<T>();
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t f = 0; f < F; ++f) {
        const double g = static_cast<Wide<T>>(h(r, f));
        const double v = gated ? static_cast<Wide<T>>(h(r, F + f)) : 0;
        const double u0 = unit_ref(a.kind, gated, g, v).value;
        u(r, f) = static_cast<T>(static_cast<Wide<T>>(score_of(a.score, r) * u0));
      }
    }
  });
}

void activation_backward_ref(const ActivationBackward& a) {
  validate(a);
  const int64_t rows = rows_in_use(a.expert_offset, a.num_experts, a.h.rows), F = a.grad_u.cols;
  const bool gated = a.h.cols != F;
  dispatch_float64(a.h.dtype, [&]<class T>() {
    using W = Wide<T>;
    const auto h = a.h.as<T>();
    const auto grad_u = a.grad_u.as<T>();
    const auto grad_h = a.grad_h.as<T>();
    for (int64_t r = 0; r < rows; ++r) {
      const double score = score_of(a.score, r);
      double dot = 0;
      for (int64_t f = 0; f < F; ++f) {
        const double g = static_cast<W>(h(r, f)), v = gated ? static_cast<W>(h(r, F + f)) : W(0);
        const double grad = static_cast<W>(grad_u(r, f));
        const GluUnit<double> unit = unit_ref(a.kind, gated, g, v);
        dot += unit.value * grad;
        grad_h(r, f) = static_cast<T>(static_cast<W>(score * grad * unit.slope_g));
        if (gated) grad_h(r, F + f) = static_cast<T>(static_cast<W>(score * grad * unit.slope_v));
        if (a.u.data != nullptr) {
          a.u.as<T>()(r, f) = static_cast<T>(static_cast<W>(score * unit.value));
        }
      }
      if (a.grad_score.data != nullptr) a.grad_score.as<W>()(r, 0) = static_cast<W>(dot);
    }
  });
}

}  // namespace troupe
