#include "troupe/data/tokens/numpy.h"

#include <bit>
#include <cmath>
#include <limits>

namespace troupe {
namespace {

using Wide = unsigned __int128;

constexpr Wide wide(uint64_t high, uint64_t low) {
  return Wide{high} << 64 | low;
}

// PCG64 (XSL-RR), as numpy.random.default_rng(0) begins: state and increment are those that its
// SeedSequence makes of 0.
class Pcg64 {
 public:
  uint32_t next32() {
    if (has_half_) return has_half_ = false, half_;
    const uint64_t word = next64();
    half_ = static_cast<uint32_t>(word >> 32);
    has_half_ = true;
    return static_cast<uint32_t>(word);
  }

 private:
  uint64_t next64() {
    state_ = state_ * wide(2549297995355413924u, 4865540595714422341u) + kIncrement;
    const auto high = static_cast<uint64_t>(state_ >> 64);
    return std::rotr(high ^ static_cast<uint64_t>(state_), static_cast<int>(high >> 58));
  }

  static constexpr Wide kIncrement = wide(0x418ddadb3af71a82u, 0x588133bc447873a9u);
  Wide state_ = wide(0x1aa1b5345996452du, 0x09585eb7a69561e3u);
  uint32_t half_ = 0;
  bool has_half_ = false;
};

}  // namespace

uint64_t numpy_draw(std::mt19937& generator, uint64_t most) {
  if (most == 0) return 0;
  const uint64_t mask = std::bit_ceil(most + 1) - 1;  // 2^k - 1 >= most
  while (true) {
    uint64_t word = generator();
    if (most > std::numeric_limits<uint32_t>::max()) word = word << 32 | generator();
    if ((word & mask) <= most) return word & mask;
  }
}

double numpy_sum(std::span<const double> values) {
  const size_t n = values.size();
  if (n < 8) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  }
  if (n > 128) {
    const size_t half = n / 2 / 8 * 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double r[8];
  for (size_t j = 0; j < 8; ++j) r[j] = values[j];
  size_t i = 8;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) r[j] += values[i + j];
  }
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

std::vector<int32_t> numpy_mock_lengths(int64_t count) {
  constexpr uint32_t kRange = 4095;  // values 1 ... 4095, by Lemire's method
  constexpr uint32_t kThreshold = -kRange % kRange;
  Pcg64 generator;
  std::vector<int32_t> out(static_cast<size_t>(count));
  for (int32_t& length : out) {
    uint64_t product = uint64_t{generator.next32()} * kRange;
    while (static_cast<uint32_t>(product) < kThreshold) {
      product = uint64_t{generator.next32()} * kRange;
    }
    length = 1 + static_cast<int32_t>(product >> 32);
  }
  return out;
}

}  // namespace troupe
