// Sums that do not depend on their order: of numbers whose sum several ranks make, each of a part
// that its layout gives it. Integers add up to the same bits in any order, and so do these.
//
// ExactSum, of f64 numbers, for a few sums such as a loss or a norm: its words are the digits of one
// long integer in units of 2^-256, 32 bits each, with room for carries:
//
//   sum = sum_i words[i] 2^(32 i - 256),   i < 12
//
// What a number has below 2^-256 is cut off. One that is not finite, or not below 2^116, makes the
// sum NaN. Words of several sums may be added, word by word, as they are after carried().
//
// A pair of integers, of f32 numbers, for each element of a gradient:
//
//   x = hi 2^-30 + lo 2^-80,   hi = round(x 2^30), lo = round((x 2^30 - hi) 2^50), ties to even
//
// So x keeps all its bits down to 2^-56 (1.4e-17), and what is below is rounded to a multiple of
// 2^-80 (8e-25). |x| must be below 2^20; then 2^13 numbers add up without overflow.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace troupe {

class ExactSum {
 public:
  static constexpr int kDigits = 12;
  // The last counts numbers that make the sum NaN.
  using Words = std::array<int64_t, kDigits + 1>;

  ExactSum() = default;
  explicit ExactSum(const Words& words) : words_(words) {}

  void add(double x);
  void add(const ExactSum& other);
  double value() const;   // to nearest but for the last bit, the same for equal sums
  Words carried() const;  // the digits, each from 0 to 2^32 but for the highest, which has the sign

 private:
  void carry();

  Words words_ = {};
  int64_t added_ = 0;  // since the last carry
};

inline constexpr double kPairLimit = 1 << 20;
inline constexpr double kPairBytes = 2 * sizeof(int64_t);
inline constexpr int64_t kPairTerms = 1 << 13;

// Integers in f64, below 2^51: x + kToInteger has them in its low bits, rounded to even.
inline constexpr double kToInteger = 6755399441055744.0;  // 1.5 2^52

inline uint64_t low_bits(double shifted) {
  return std::bit_cast<uint64_t>(shifted) - std::bit_cast<uint64_t>(kToInteger);
}

// Adds x to a pair. False: it is not below kPairLimit, and the pair then means nothing.
inline bool add_to_pair(int64_t* pair, double x) {
  const double scaled = x * 0x1p30, shifted = scaled + kToInteger;
  const double rest = (scaled - (shifted - kToInteger)) * 0x1p50;
  pair[0] = static_cast<int64_t>(static_cast<uint64_t>(pair[0]) + low_bits(shifted));
  pair[1] = static_cast<int64_t>(static_cast<uint64_t>(pair[1]) + low_bits(rest + kToInteger));
  return std::abs(x) < kPairLimit;
}

// The number that a pair is: equal ones, in whatever parts it came, give equal bits.
inline float value_of_pair(const int64_t* pair) {
  constexpr int64_t kHalf = int64_t{1} << 49;
  const int64_t carry = (pair[1] + kHalf) >> 50;
  const auto hi = static_cast<double>(pair[0] + carry);
  const auto lo = static_cast<double>(pair[1] - carry * (int64_t{1} << 50));
  return static_cast<float>(hi * 0x1p-30 + lo * 0x1p-80);
}

}  // namespace troupe
