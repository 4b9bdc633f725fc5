// Tensors in host memory that a GPU copies from and to while it computes: their pages are locked.
//
// Each has pages of its own, as many bytes as it needs (PyTorch's pinned tensors take the next power
// of two), which go back to the system with the last tensor that refers to them. The system takes
// them back itself where the process is killed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>

namespace troupe {

// [n] of `type` in host memory, 0, for copies to and from `device`; on a CPU it is not locked. E7006
// where the system does not lock as much.
at::Tensor pinned_zeros(int64_t n, at::ScalarType type, const c10::Device& device);

// Of the plug-in: the reason why not, or null.
inline constexpr const char *kPinHostMemory = "troupe_pin_host_memory",
                            *kUnpinHostMemory = "troupe_unpin_host_memory";
using PinHostMemory = const char* (*)(void* begin, size_t bytes);
using UnpinHostMemory = const char* (*)(void* begin);

}  // namespace troupe
