// Memory that need not wait for its tensor's end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace troupe {

// Frees the memory of x, which is left without elements, and of all that share it. For a tensor
// that this library made and that is not read again. Work launched before still finds its bytes: a
// GPU's allocator hands them to later work of the same stream.
inline void give_back(const at::Tensor& x) {
  x.storage().unsafeGetStorageImpl()->reset();
  x.unsafeGetTensorImpl()->set_sizes_contiguous({0});
}

// The memory of a tensor and of all its views, also those that autograd keeps: freed, and allocated
// anew, with other values, where it is not there. The tensors stay as they are.
inline void release_memory(const at::Tensor& x) {
  c10::StorageImpl* const storage = x.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(nullptr, x.device()));
  storage->set_nbytes(0);
}

inline void restore_memory(const at::Tensor& x) {
  c10::StorageImpl* const storage = x.storage().unsafeGetStorageImpl();
  if (storage->nbytes() > 0) return;
  const size_t bytes = static_cast<size_t>(x.numel()) * x.element_size();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

}  // namespace troupe
