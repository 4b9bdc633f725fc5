// Non-owning views: what kernels take in place of a framework's tensor.
#pragma once

#include <cstdint>

#include "troupe/core/check.h"
#include "troupe/core/host_device.h"
#include "troupe/core/number/dtype.h"

namespace troupe {

// A row-major matrix of known type; rows may be padded (ld >= cols).
template <class T>
struct Mat {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;

  TROUPE_HOST_DEVICE T* row(int64_t i) const { return data + i * ld; }
  TROUPE_HOST_DEVICE T& operator()(int64_t i, int64_t j) const { return data[i * ld + j]; }
};

// The same with its type known at run time only: the currency of host APIs.
struct MatRef {
  const void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;

  template <class T>
  Mat<const T> as() const {
    TROUPE_CHECK(dtype == dtype_of<T>, "view holds", name(dtype), "asked for", name(dtype_of<T>));
    return {static_cast<const T*>(data), rows, cols, ld};
  }
};

// As MatRef, for what is written.
struct MutRef {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;

  template <class T>
  Mat<T> as() const {
    TROUPE_CHECK(dtype == dtype_of<T>, "view holds", name(dtype), "asked for", name(dtype_of<T>));
    return {static_cast<T*>(data), rows, cols, ld};
  }
  MatRef read() const { return {data, dtype, rows, cols, ld}; }
};

// What a validate() says of a matrix: its sizes and type, that it is there, that rows do not
// overlap.
inline void check_matrix(const MatRef& x, const char* what, int64_t rows, int64_t cols,
                         Dtype dtype) {
  TROUPE_CHECK(x.rows == rows && x.cols == cols, what, "is", x.rows, "x", x.cols, "and must be",
               rows, "x", cols);
  TROUPE_CHECK(x.dtype == dtype, what, "is", name(x.dtype), "and must be", name(dtype));
  TROUPE_CHECK(x.data != nullptr || rows * cols == 0, what, "is missing");
  TROUPE_CHECK(x.ld >= cols, what, "has rows of", cols, "elements,", x.ld, "apart");
}

}  // namespace troupe
