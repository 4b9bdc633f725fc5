// Memory that need not wait for its tensor's end.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// Frees the memory of x, which is left without elements, and of all that share it. For a tensor
// that this library made and that is not read again. Work launched before still finds its bytes: a
// GPU's allocator hands them to later work of the same stream.
inline void give_back(const at::Tensor& x) {
  x.storage().unsafeGetStorageImpl()->reset();
  x.unsafeGetTensorImpl()->set_sizes_contiguous({0});
}

}  // namespace troupe
