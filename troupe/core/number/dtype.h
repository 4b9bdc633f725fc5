// Element types, and the one way from a run-time Dtype to a compile-time type.
#pragma once

#include <cstdint>
#include <type_traits>

#include "troupe/core/check.h"
#include "troupe/core/host_device.h"
#include "troupe/core/number/bf16.h"
#include "troupe/core/number/f16.h"

namespace troupe {

enum class Dtype { kF32, kBF16, kF16, kF64 };

inline const char* name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32: return "f32";
    case Dtype::kBF16: return "bf16";
    case Dtype::kF16: return "f16";
    case Dtype::kF64: return "f64";
  }
  return "?";
}

inline int64_t size_bytes(Dtype dtype) {
  return dtype == Dtype::kF64 ? 8 : dtype == Dtype::kF32 ? 4 : 2;
}

template <class T>
inline constexpr bool kUnsupported = false;

template <class T>
inline constexpr Dtype dtype_of = [] {
  if constexpr (std::is_same_v<T, float>)
    return Dtype::kF32;
  else if constexpr (std::is_same_v<T, BF16>)
    return Dtype::kBF16;
  else if constexpr (std::is_same_v<T, F16>)
    return Dtype::kF16;
  else if constexpr (std::is_same_v<T, double>)
    return Dtype::kF64;
  else
    static_assert(kUnsupported<T>, "add the type to Dtype first");
}();

// The type that arithmetic on T runs in: float, and double for double.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
inline Dtype wide(Dtype dtype) {
  return dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32;
}

// out = value, rounded to T. For loops on the CPU: g++ 12 makes vector code of this, and none of a
// loop that assigns a BF16 whole (activation_bench, bf16: 16 ms against 4).
template <class T>
TROUPE_INLINE void put(T& out, Wide<T> value) {
  if constexpr (requires { out.bits; }) {
    out.bits = static_cast<T>(value).bits;
  } else {
    out = value;
  }
}

// dispatch_float(x.dtype, [&]<class T>() { run<T>(x.as<T>()); });  what models are trained in
template <class F>
decltype(auto) dispatch_float(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::kF32: return f.template operator()<float>();
    case Dtype::kBF16: return f.template operator()<BF16>();
    case Dtype::kF16: return f.template operator()<F16>();
    default: detail::fail(__FILE__, __LINE__, "no kernel built for the dtype", name(dtype));
  }
}

// The same with double, for CPU paths whose gradients are checked by a numeric Jacobian.
template <class F>
decltype(auto) dispatch_float64(Dtype dtype, F&& f) {
  if (dtype == Dtype::kF64) return f.template operator()<double>();
  return dispatch_float(dtype, f);
}

// dispatch_int<1, 2, 4, 8>(k, [&]<int K>() { ... });  an unlisted value is an error, no fallback.
template <int... kValues, class F>
void dispatch_int(int value, F&& f) {
  const bool hit = ((value == kValues && (f.template operator()<kValues>(), true)) || ...);
  TROUPE_CHECK(hit, "no kernel built for the value", value);
}

}  // namespace troupe
