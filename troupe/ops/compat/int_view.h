// Integer tensors to the views that index kernels take; the last dimension is the row.
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/core/number/int_dtype.h"

namespace troupe {

// Contiguous int16, int32 or int64 of one or two dimensions; one dimension is one row.
IntRef int_view(const at::Tensor& x, const char* name);
IntMut mut_int_view(const at::Tensor& x, const char* name);

}  // namespace troupe
