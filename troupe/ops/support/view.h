// Tensors to the views that kernels take. Each call names its argument, so that an error can say
// which one was wrong, what it was and what it must be:
//   route: logits must be [T, E] with rows packed, dtype f32, bf16 or f16, on cpu; it is ...
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

#include "troupe/core/device/view.h"

namespace troupe {

Dtype dtype_of_tensor(const at::Tensor& x,
                      const char* name);  // a float type of core/number/dtype.h
at::ScalarType scalar_type(Dtype dtype);
at::Tensor int_ids(const at::Tensor& ids, int64_t experts);  // int32 or int64 -> int32; out of
                                                             // [0, experts) stays out of it
at::ScalarType wide_type(
    const at::Tensor& x);  // that sums over x are kept in: f64 for f64, else f32

// The argument as kernels want it: all dimensions but the last flattened into rows, columns
// contiguous. `rowwise` returns x itself where that holds and a copy where it does not (x.t(),
// expand: rule E16). Outputs that are made with at::empty always fit. Sizes may be symbolic.
at::Tensor rowwise(const at::Tensor& x);

MatRef view(const at::Tensor& x, const char* name);      // a float matrix, read
MutRef mut_view(const at::Tensor& x, const char* name);  // a float matrix, written

// A vector as a matrix of one column; empty where it is not given.
MatRef column(const std::optional<at::Tensor>& x, const char* name);

template <class T>
Mat<T> mat(const at::Tensor& x, const char* name);  // T: float, double, int32_t, int64_t, uint8_t

template <class T>
T* ptr(const at::Tensor& x, const char* name);  // contiguous; T may be const

template <class T>
T* ptr_or_null(const std::optional<at::Tensor>& x, const char* name) {
  return x.has_value() && x->defined() ? ptr<T>(*x, name) : nullptr;
}

// Checks with one form of message. `-1` in sizes: any. Sizes may be symbolic, as those of a traced
// tensor are: what is compared becomes a relation of symbols, and no symbol becomes a number.
void check_sizes(const at::Tensor& x, std::initializer_list<c10::SymInt> sizes, const char* name);
void check_same_device(const at::Tensor& x, const at::Tensor& other, const char* name);
void check_dtype(const at::Tensor& x, at::ScalarType dtype, const char* name);
std::string tensor_text(const at::Tensor& x);  // for messages

}  // namespace troupe
