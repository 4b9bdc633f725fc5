// Large CPU tensors on large pages. The first touch of 64 MiB costs 42 ms in pages of 4 KiB and 8
// ms in pages of 2 MiB (measured on a 2-core virtual machine), and a training step's temporaries
// are touched anew each time, because the C library gives large blocks back to the system.
#pragma once

#include <ATen/core/Tensor.h>

namespace troupe {

// at::empty; a CPU tensor of several large pages asks the system for them (where it grants them).
at::Tensor empty_large(at::IntArrayRef sizes, const at::TensorOptions& options);

// From now on the process keeps large CPU tensors in a core/device/memory_region.h, which takes no
// more than lives at once and a little. Before the first tensor.
void keep_large_tensors_together();

}  // namespace troupe
