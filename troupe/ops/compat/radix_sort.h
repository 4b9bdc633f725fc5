// A stable sort of integers by their low bits, with its permutation: kernels/radix_sort.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace troupe {

// x [n] int16, int32 or int64; without end_bit all bits count. Returns (values, indices int32).
// In Python torch.ops.troupe.sort, after MegaBlocks.
std::tuple<at::Tensor, at::Tensor> radix_sort(const at::Tensor& x,
                                              std::optional<int64_t> end_bit = std::nullopt);

}  // namespace troupe
