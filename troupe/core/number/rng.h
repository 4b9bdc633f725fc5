// Random numbers as a function: of the seed, of what they are for (stream) and of which element is
// meant. No state, so that any split over ranks, threads and devices draws the same numbers, and a
// checkpoint has nothing to keep. For one seed, no two streams share a key.
//   Rng(seed, stream_of("layers.3.experts.w1")).normal(i)        i: the *global* element index
//   Rng(seed, stream_of("router_jitter.3")).uniform(token, e)    an index and a column
//
// The generator is Philox4x32-10 (Salmon et al., SC 2011), counter (index low, index high, column,
// 0). Every function gives the same bits on CPU and CUDA, at any optimization: floating sums of
// products are explicit fused operations, and libm's functions are not used. For seeds, not for
// secrets.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "troupe/core/host_device.h"

namespace troupe {

struct Words4 {
  uint32_t w[4];
};

// The block cipher itself: ten rounds over the counter, under a key of 64 bits.
TROUPE_HOST_DEVICE inline Words4 philox(Words4 counter, uint64_t key) {
  auto [a, b, c, d] = counter.w;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p = uint64_t{0xd2511f53u} * a, q = uint64_t{0xcd9e8d57u} * c;
    a = static_cast<uint32_t>(q >> 32) ^ b ^ k0;
    c = static_cast<uint32_t>(p >> 32) ^ d ^ k1;
    b = static_cast<uint32_t>(q);
    d = static_cast<uint32_t>(p);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return {{a, b, c, d}};
}

// FNV-1a of a name's bytes.
constexpr uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

namespace detail {

// A bijection of 64 bits that leaves none where it was (the finalizer of SplitMix64).
TROUPE_HOST_DEVICE constexpr uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// ln x of a normal x > 0, within 1e-7 (absolute near 1, else relative): x = m 2^e with m around 1,
// and a polynomial in m - 1 (Cephes logf).
TROUPE_HOST_DEVICE inline float ln(float x) {
  constexpr uint32_t kHalfRoot = 0x3f3504f3u;  // sqrt(1/2)
  const uint32_t above = std::bit_cast<uint32_t>(x) - kHalfRoot;
  const float e = static_cast<float>(static_cast<int32_t>(above) >> 23);
  const float z = std::bit_cast<float>((above & 0x007fffffu) + kHalfRoot) - 1;
  float p = 7.0376836292e-2f;
  p = fmaf(p, z, -1.1514610310e-1f);
  p = fmaf(p, z, 1.1676998740e-1f);
  p = fmaf(p, z, -1.2420140846e-1f);
  p = fmaf(p, z, 1.4249322787e-1f);
  p = fmaf(p, z, -1.6668057665e-1f);
  p = fmaf(p, z, 2.0000714765e-1f);
  p = fmaf(p, z, -2.4999993993e-1f);
  p = fmaf(p, z, 3.3333331174e-1f);
  const float zz = z * z;
  const float tail = fmaf(e, -2.12194440e-4f, (p * z) * zz);
  return fmaf(e, 0.693359375f, fmaf(zz, -0.5f, tail) + z);  // e ln 2 in two parts
}

// cos(2 pi w / 2^32): the nearest quarter turn, and a polynomial in what is left, at most pi / 4.
TROUPE_HOST_DEVICE inline float cos_turn(uint32_t w) {
  const uint32_t quarter = (w + (1u << 29)) >> 30;
  const float x = static_cast<float>(static_cast<int32_t>(w - (quarter << 30))) * 1.462918079e-9f;
  const float s = x * x;
  float c = fmaf(2.443315711809948e-5f, s, -1.388731625493765e-3f);
  c = fmaf(fmaf(c, s, 4.166664568298827e-2f), s, -0.5f);
  c = fmaf(c, s, 1);
  float sine = fmaf(-1.9515295891e-4f, s, 8.3321608736e-3f);
  sine = fmaf(sine, s, -1.6666654611e-1f);
  sine = fmaf(sine * s, x, x);
  const float value = quarter & 1 ? sine : c;
  return ((quarter + 1) & 2) != 0 ? -value : value;  // cos, -sin, -cos, sin
}

}  // namespace detail

class Rng {
 public:
  TROUPE_HOST_DEVICE constexpr Rng(uint64_t seed, uint64_t stream)
      : key_(detail::mix(detail::mix(seed + 0x9e3779b97f4a7c15u) ^ stream)) {}

  // 128 random bits of an element.
  TROUPE_HOST_DEVICE Words4 bits(uint64_t index, uint32_t column = 0) const {
    const auto low = static_cast<uint32_t>(index), high = static_cast<uint32_t>(index >> 32);
    return philox({{low, high, column, 0}}, key_);
  }

  // Uniform in [0, 1): a multiple of 2^-24.
  TROUPE_HOST_DEVICE float uniform(uint64_t index, uint32_t column = 0) const {
    return static_cast<float>(bits(index, column).w[0] >> 8) * 0x1p-24f;
  }

  // Normal with mean 0 and variance 1, |x| < 6.8, by Box and Muller: sqrt(-2 ln u) cos(2 pi v).
  TROUPE_HOST_DEVICE float normal(uint64_t index, uint32_t column = 0) const {
    const Words4 r = bits(index, column);
    const float u = (static_cast<float>(r.w[0]) + 0.5f) * 0x1p-32f;  // in [2^-33, 1]
    return sqrtf(-2 * detail::ln(u)) * detail::cos_turn(r.w[1]);
  }

 private:
  uint64_t key_;
};

}  // namespace troupe
