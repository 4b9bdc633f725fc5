// Rule Q9 of one element and of one scale, as the CPU and the CUDA path share it: without branches,
// in float alone.
//
//   scale(m)     what is stored for a group whose largest magnitude is m
//   divisor(s)   what elements are divided by
//   code(t)      of a quotient
//   value(code) step(s)   is what a code reads back as
#pragma once

#include <bit>
#include <cstdint>

#include "troupe/core/host_device.h"
#include "troupe/core/number/e4m3.h"
#include "troupe/kernels/low_bit/low_bit.h"

namespace troupe {

struct Nf4Rule {
  using Scale = float;
  static constexpr int kBits = 4, kGroup = 64;
  static constexpr int kEvenShift = 4;  // of an even element's code in its byte

  TROUPE_INLINE static float scale(float largest) { return largest; }
  TROUPE_INLINE static float divisor(float scale) { return scale; }
  TROUPE_INLINE static float step(float scale) { return scale; }
  static constexpr uint32_t kMidpoints = 15;
  // Between value i and the next, as bitsandbytes has it: where a midpoint lies between two floats,
  // its own digits decide which one.
  TROUPE_INLINE static float midpoint(uint32_t i) {
    constexpr float kTable[] = {
        -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
        -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
        0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
        0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f};
    return kTable[i];
  }
  // How many of the midpoints are below t.
  TROUPE_INLINE static uint32_t code(float t) {
    uint32_t below = 0;
    for (uint32_t i = 0; i < kMidpoints; ++i) below += t > midpoint(i) ? 1u : 0u;
    return below;
  }
  TROUPE_INLINE static float value(uint32_t code) {
    constexpr float kValues[] = {-1.0f,
                                 -0.6961928009986877f,
                                 -0.5250730514526367f,
                                 -0.39491748809814453f,
                                 -0.28444138169288635f,
                                 -0.18477343022823334f,
                                 -0.09105003625154495f,
                                 0.0f,
                                 0.07958029955625534f,
                                 0.16093020141124725f,
                                 0.24611230194568634f,
                                 0.33791524171829224f,
                                 0.44070982933044434f,
                                 0.5626170039176941f,
                                 0.7229568362236023f,
                                 1.0f};
    return kValues[code];
  }
};

struct Int8Rule {
  using Scale = float;
  static constexpr int kBits = 8, kGroup = 128;

  TROUPE_INLINE static float scale(float largest) { return largest / 127.0f; }
  TROUPE_INLINE static float divisor(float scale) { return scale; }
  TROUPE_INLINE static float step(float scale) { return scale; }
  TROUPE_INLINE static uint32_t code(float t) {
    constexpr float kRound = 0x1.8p23f;  // Added to a small number, it leaves the nearest integer.
    const float bounded = t > 127.0f ? 127.0f : t < -127.0f ? -127.0f : t;
    return static_cast<uint32_t>(static_cast<int32_t>((bounded + kRound) - kRound)) & 0xffu;
  }
  TROUPE_INLINE static float value(uint32_t code) {
    return static_cast<float>(static_cast<int8_t>(code));
  }
};

struct Fp8Rule {
  using Scale = float;
  static constexpr int kBits = 8, kGroup = 128;

  TROUPE_INLINE static float scale(float largest) { return largest / 448.0f; }
  TROUPE_INLINE static float divisor(float scale) { return scale; }
  TROUPE_INLINE static float step(float scale) { return scale; }
  TROUPE_INLINE static uint32_t code(float t) { return E4M3::round(t); }
  TROUPE_INLINE static float value(uint32_t code) { return E4M3::widen(code); }
};

struct Mxfp4Rule {
  using Scale = uint8_t;
  static constexpr int kBits = 4, kGroup = 32;
  static constexpr int kEvenShift = 0;

  // 6 is 1.5 2^2: a float's exponent less 2, and 0 where that would be less.
  TROUPE_INLINE static uint8_t scale(float largest) {
    const uint32_t exponent = std::bit_cast<uint32_t>(largest) >> 23;
    return static_cast<uint8_t>(exponent > 2 ? exponent - 2 : 0);
  }
  TROUPE_INLINE static float divisor(uint8_t scale) {  // 2^(scale - 127), a subnormal for 0
    return std::bit_cast<float>(scale == 0 ? 0x00400000u : uint32_t{scale} << 23);
  }
  // Half of 2^(scale - 127), whose largest is no float; value() is doubled.
  TROUPE_INLINE static float step(uint8_t scale) {
    return std::bit_cast<float>(scale < 2 ? 0x00200000u << scale : (uint32_t{scale} - 1) << 23);
  }
  // Ties go to codes 0, 2, 4 and 6.
  TROUPE_INLINE static uint32_t code(float t) {
    constexpr float kDown[] = {0.25f, 1.25f, 2.5f, 5.0f}, kUp[] = {0.75f, 1.75f, 3.5f};
    const uint32_t bits = std::bit_cast<uint32_t>(t);
    const float a = std::bit_cast<float>(bits & 0x7fffffffu);
    uint32_t passed = bits >> 31 << 3;
    for (const float tie : kDown) passed += a > tie ? 1u : 0u;
    for (const float tie : kUp) passed += a >= tie ? 1u : 0u;
    return passed;
  }
  TROUPE_INLINE static float value(uint32_t code) {
    constexpr float kDoubled[] = {0.0f,  1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                  -0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};
    return kDoubled[code];
  }
};

TROUPE_INLINE float low_bit_quotient(float x, float divisor) {
  return divisor > 0 ? x / divisor : 0.0f;
}

// |x| in the order of bits; from kLowBitInf on x is NaN or infinite.
inline constexpr uint32_t kLowBitInf = 0x7f800000u;
TROUPE_INLINE uint32_t low_bit_magnitude(float x) {
  return std::bit_cast<uint32_t>(x) & 0x7fffffffu;
}

// Where a format's scales are.
template <class Rule, class Args>
auto* low_bit_scales(const Args& a) {
  if constexpr (sizeof(typename Rule::Scale) == 1) {
    return a.exponents;
  } else {
    return a.scales;
  }
}

// f.operator()<Rule>()
template <class F>
decltype(auto) dispatch_low_bit(LowBitFormat format, F&& f) {
  switch (format) {
    case LowBitFormat::kNf4: return f.template operator()<Nf4Rule>();
    case LowBitFormat::kInt8: return f.template operator()<Int8Rule>();
    case LowBitFormat::kFp8: return f.template operator()<Fp8Rule>();
    case LowBitFormat::kMxfp4: return f.template operator()<Mxfp4Rule>();
  }
  detail::fail(__FILE__, __LINE__, "no kernel built for the format", static_cast<int>(format));
}

}  // namespace troupe
