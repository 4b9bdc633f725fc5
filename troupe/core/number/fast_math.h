// exp and what is made of it, as code without calls or branches: a loop over them becomes vector
// instructions, which a loop over libm's does not. float: within 2 ulp of the true exp, subnormals
// and overflow included; double: the standard library's. On a GPU exp is CUDA's own.
// NaN gives NaN everywhere, and none of these makes a NaN from a finite number.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "troupe/core/host_device.h"

namespace troupe::fast {

// Comparisons are false for a NaN, which therefore passes.
template <class W>
TROUPE_INLINE W at_most(W x, W high) {
  return x > high ? high : x;
}
template <class W>
TROUPE_INLINE W at_least(W x, W low) {
  return x < low ? low : x;
}

TROUPE_INLINE double exp(double x) {
  return std::exp(x);
}

// exp(x) = 2^n exp(r), |r| <= ln(2) / 2; Cephes' polynomial for exp(r).
TROUPE_INLINE float exp(float x) {
#ifdef __CUDA_ARCH__
  return expf(x);
#else
  constexpr float kRound = 0x1.8p23f;  // Added to a small number, it leaves the nearest integer.
  const float c = at_most(at_least(x, -104.0f), 89.0f);  // Beyond: 0 and infinity.
  const float shifted = c * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // In two factors: 2^n alone is no float at either end of the range.
  const int32_t power = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = power >> 1;
  const uint32_t low = static_cast<uint32_t>(half + 127) << 23;
  const uint32_t high = static_cast<uint32_t>(power - half + 127) << 23;
  return p * std::bit_cast<float>(low) * std::bit_cast<float>(high);
#endif
}

TROUPE_INLINE double reciprocal(double x) {
  return 1 / x;
}
TROUPE_INLINE float reciprocal(float x) {
#ifdef __CUDA_ARCH__
  return __fdividef(1.0f, x);
#else
  return 1.0f / x;
#endif
}

// p = 1 / (1 + exp(-x)) and q = 1 - p, both to full relative precision.
template <class W>
struct Sigmoid {
  W p, q;
};
template <class W>
TROUPE_INLINE Sigmoid<W> sigmoid(W x) {
  const W e = exp(-std::abs(x));
  const W large = reciprocal(1 + e), small = e * large;
  return x < 0 ? Sigmoid<W>{small, large} : Sigmoid<W>{large, small};
}

// The standard normal distribution: cdf = (1 + erf(x / sqrt 2)) / 2, and its density.
template <class W>
struct Normal {
  W cdf, density;
};
TROUPE_INLINE Normal<double> normal(double x) {
  return {0.5 * std::erfc(-x * 0.70710678118654752), 0.39894228040143268 * std::exp(-0.5 * x * x)};
}

// erfc(z) = exp(-z^2) t P(t) with t = 1 / (1 + 0.42 z): a minimax fit of relative error 2.4e-9.
TROUPE_INLINE Normal<float> normal(float x) {
  const float a = at_most(std::abs(x), 15.0f);  // Both are 0 from there on.
  const float t = reciprocal(1 + a * (0.42f * 0.70710678f));
  float p = -0.0410630301f;
  p = p * t + 0.230317136f;
  p = p * t - 0.485767379f;
  p = p * t + 0.436031463f;
  p = p * t - 0.196438935f;
  p = p * t + 0.213276631f;
  p = p * t + 0.150191582f;
  p = p * t + 0.219863621f;
  p = p * t + 0.236615762f;
  p = p * t + 0.236973148f;
  // The square's rounding error is a relative error of exp: carry it along.
  const float square = a * a, error = std::fma(a, a, -square);
  const float e = exp(-0.5f * square) * (1 - 0.5f * error);
  const float tail = 0.5f * e * t * p;
  return {x > 0 ? 1 - tail : tail, 0.39894228f * e};
}

}  // namespace troupe::fast
