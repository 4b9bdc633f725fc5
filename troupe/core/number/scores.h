// The scores of experts, in double, by operations that every processor rounds alike: sums of
// products are explicit fused operations, and libm's functions are not used. Rounded to float they
// are the same bits on CPU and CUDA, so a choice among them is the same too. Loops over them become
// vector code. Within 1e-15 of the true values, relatively; NaN gives NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "troupe/core/host_device.h"

namespace troupe {

enum class Score { kSoftmax, kSigmoid, kSqrtSoftplus };

namespace scores {

// exp(x) for x <= 0, to 1 ulp; below -708 it stays at exp(-708), which is 0 as a float. NaN passes.
// exp(x) = 2^n exp(r), |r| <= ln(2) / 2, and Taylor's polynomial for exp(r).
TROUPE_INLINE double exp_negative(double x) {
  constexpr double kRound = 0x1.8p52;  // Added to a small number, it leaves the nearest integer.
  const double c = x < -708 ? -708 : x;
  const double shifted = fma(c, 1.4426950408889634, kRound);
  const double n = shifted - kRound;
  const double r = fma(n, -0x1.a39ef35793c76p-33, fma(n, -0x1.62e42feep-1, c));
  double p = 1.6059043836821613e-10;  // 1 / 13!
  p = fma(p, r, 2.0876756987868098e-9);
  p = fma(p, r, 2.505210838544172e-8);
  p = fma(p, r, 2.755731922398589e-7);
  p = fma(p, r, 2.7557319223985893e-6);
  p = fma(p, r, 2.48015873015873e-5);
  p = fma(p, r, 1.984126984126984e-4);
  p = fma(p, r, 1.388888888888889e-3);
  p = fma(p, r, 8.333333333333333e-3);
  p = fma(p, r, 4.1666666666666664e-2);
  p = fma(p, r, 1.6666666666666666e-1);
  p = fma(p, r, 0.5);
  p = fma(p, r, 1);
  p = fma(p, r, 1);
  const int64_t power = std::bit_cast<int64_t>(shifted) - std::bit_cast<int64_t>(kRound);
  return p * std::bit_cast<double>((power + 1023) << 52);
}

// base + ln(1 + y) for 0 <= y <= 1: twice the series of atanh(w), w = y / (2 + y) <= 1/3. Written
// out, since a loop inside keeps a loop outside from becoming vector code.
TROUPE_INLINE double plus_log1p(double base, double y) {
  const double w = y / (2 + y), square = w * w;
  double p = 1.0 / 35;
  p = fma(p, square, 1.0 / 33);
  p = fma(p, square, 1.0 / 31);
  p = fma(p, square, 1.0 / 29);
  p = fma(p, square, 1.0 / 27);
  p = fma(p, square, 1.0 / 25);
  p = fma(p, square, 1.0 / 23);
  p = fma(p, square, 1.0 / 21);
  p = fma(p, square, 1.0 / 19);
  p = fma(p, square, 1.0 / 17);
  p = fma(p, square, 1.0 / 15);
  p = fma(p, square, 1.0 / 13);
  p = fma(p, square, 1.0 / 11);
  p = fma(p, square, 1.0 / 9);
  p = fma(p, square, 1.0 / 7);
  p = fma(p, square, 1.0 / 5);
  p = fma(p, square, 1.0 / 3);
  p = fma(p, square, 1);
  return fma(2 * w, p, base);
}

struct Slope {
  double s, ds;  // a score and its derivative by the logit
};

TROUPE_INLINE Slope sigmoid_slope(double z) {
  const double e = exp_negative(-fabs(z)), large = 1 / (1 + e), small = e * large;
  return {z < 0 ? small : large, small * large};
}

TROUPE_INLINE double sqrt_softplus(double z) {
  return sqrt(plus_log1p(z > 0 ? z : 0, exp_negative(-fabs(z))));
}

// For the two scores that are functions of one logit.
template <Score kScore>
TROUPE_INLINE double score_of(double z) {
  static_assert(kScore != Score::kSoftmax);
  if constexpr (kScore == Score::kSigmoid) return sigmoid_slope(z).s;
  return sqrt_softplus(z);
}

// 0 where the score is 0 as a float.
template <Score kScore>
TROUPE_INLINE Slope slope_of(double z) {
  static_assert(kScore != Score::kSoftmax);
  if constexpr (kScore == Score::kSigmoid) return sigmoid_slope(z);
  const double s = sqrt_softplus(z);
  return {s, s < 1e-45 ? 0 : sigmoid_slope(z).s / (2 * s)};
}

TROUPE_INLINE double score_of(Score score, double z) {
  return score == Score::kSigmoid ? score_of<Score::kSigmoid>(z)
                                  : score_of<Score::kSqrtSoftplus>(z);
}
TROUPE_INLINE Slope slope_of(Score score, double z) {
  return score == Score::kSigmoid ? slope_of<Score::kSigmoid>(z)
                                  : slope_of<Score::kSqrtSoftplus>(z);
}

// Added to a sum of scores that divides.
inline constexpr float kTiny = 1e-20f;

}  // namespace scores
}  // namespace troupe
