#include "troupe/core/number/exact_sum.h"

#include <limits>

namespace troupe {
namespace {

constexpr uint64_t kLow32 = 0xffffffff;
constexpr int kExponentOfDigit0 = -256;    // 2^-256 is its unit
constexpr int kExponentOfBit0 = 1075;      // a double is its 53 bits times 2^(exponent - 1075)
constexpr int64_t kBeforeCarry = 1 << 28;  // each number adds less than 2^33 to a word

// The digits carried: each from 0 to 2^32 but the highest.
void carry_digits(ExactSum::Words& words) {
  for (int i = 0; i + 1 < ExactSum::kDigits; ++i) {
    const auto at = static_cast<size_t>(i);
    words[at + 1] += words[at] >> 32;
    words[at] &= static_cast<int64_t>(kLow32);
  }
}

}  // namespace

void ExactSum::carry() {
  carry_digits(words_);
  added_ = 0;
}

void ExactSum::add(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);
  if (exponent == 0) return;  // 0, or far below the lowest digit
  uint64_t mantissa = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  int place = exponent - kExponentOfBit0 - kExponentOfDigit0;
  if (place > 32 * (kDigits - 2) - 1) {
    ++words_[kDigits];
    return;
  }
  if (place < 0) {
    mantissa = place > -53 ? mantissa >> -place : 0;
    place = 0;
  }
  const int shift = place % 32;
  const uint64_t low = (mantissa & kLow32) << shift, high = (mantissa >> 32) << shift;
  const int64_t sign = std::signbit(x) ? -1 : 1;
  const auto at = static_cast<size_t>(place / 32);
  words_[at] += sign * static_cast<int64_t>(low & kLow32);
  words_[at + 1] += sign * static_cast<int64_t>((low >> 32) + (high & kLow32));
  words_[at + 2] += sign * static_cast<int64_t>(high >> 32);
  if (++added_ == kBeforeCarry) carry();
}

void ExactSum::add(const ExactSum& other) {
  carry();
  const Words words = other.carried();
  for (size_t i = 0; i < words.size(); ++i) words_[i] += words[i];
  carry();
}

ExactSum::Words ExactSum::carried() const {
  Words out = words_;
  carry_digits(out);
  return out;
}

double ExactSum::value() const {
  if (words_[kDigits] != 0) return std::numeric_limits<double>::quiet_NaN();
  Words words = carried();
  const bool negative = words[kDigits - 1] < 0;
  if (negative) {
    for (int i = 0; i < kDigits; ++i) words[static_cast<size_t>(i)] *= -1;
    carry_digits(words);
  }
  double out = 0;
  for (int i = kDigits - 1; i >= 0; --i) {
    out +=
        std::ldexp(static_cast<double>(words[static_cast<size_t>(i)]), 32 * i + kExponentOfDigit0);
  }
  return negative ? -out : out;
}

}  // namespace troupe
