// Integer element types, beside the float types of dtype.h: for index operators that take any
// width.
#pragma once

#include <cstdint>
#include <type_traits>

#include "troupe/core/check.h"
#include "troupe/core/host_device.h"

namespace troupe {

enum class IntDtype { kI16, kI32, kI64 };

inline const char* name(IntDtype dtype) {
  return dtype == IntDtype::kI16 ? "i16" : dtype == IntDtype::kI32 ? "i32" : "i64";
}

inline int64_t size_bytes(IntDtype dtype) {
  return dtype == IntDtype::kI16 ? 2 : dtype == IntDtype::kI32 ? 4 : 8;
}

template <class T>
inline constexpr IntDtype int_dtype_of = [] {
  static_assert(std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) != 1);
  return sizeof(T) == 2 ? IntDtype::kI16 : sizeof(T) == 4 ? IntDtype::kI32 : IntDtype::kI64;
}();

// dispatch_integer(x.dtype, [&]<class T>() { run<T>(x.as<T>()); });
template <class F>
decltype(auto) dispatch_integer(IntDtype dtype, F&& f) {
  switch (dtype) {
    case IntDtype::kI16: return f.template operator()<int16_t>();
    case IntDtype::kI32: return f.template operator()<int32_t>();
    default: return f.template operator()<int64_t>();
  }
}

// A contiguous [rows, cols] array of integers, its type known at run time only.
struct IntRef {
  const void* data = nullptr;
  IntDtype dtype = IntDtype::kI32;
  int64_t rows = 0;
  int64_t cols = 0;

  template <class T>
  const T* as() const {
    TROUPE_CHECK(dtype == int_dtype_of<T>, "array holds", name(dtype), "asked for another type");
    return static_cast<const T*>(data);
  }
};

// As IntRef, for what is written.
struct IntMut {
  void* data = nullptr;
  IntDtype dtype = IntDtype::kI32;
  int64_t rows = 0;
  int64_t cols = 0;

  template <class T>
  T* as() const {
    TROUPE_CHECK(dtype == int_dtype_of<T>, "array holds", name(dtype), "asked for another type");
    return static_cast<T*>(data);
  }
};

}  // namespace troupe
