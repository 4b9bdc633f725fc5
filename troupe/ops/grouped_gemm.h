// Products over the rows of experts, kernels/grouped_gemm: segment e is rows
// [expert_offset[e], expert_offset[e + 1]).
//
//   grouped_gemm          y[r] = W_e x[r]                      for each row r of segment e
//   grouped_gemm_weight   g[e] = sum over rows r of segment e of the outer products a[r] b[r]
//
// Rows past expert_offset[E] give zeros, and their gradient is zero; an expert without rows has a
// zero g. On a Hopper GPU the sum of one expert alone whose g is small is cut after each 8,192 rows
// (kernels/moe_sm90: choose_weight_segment). On CPU 16-bit types are multiplied as f32. Gradients for x and w, and for a and b.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace troupe {

// How a weight is stored: its rows are outputs ([E, N, K]), or inputs ([E, K, N]).
enum class WeightOrder { kOutIn, kInOut };

// x [R, K], w [E, N, K] or [E, K, N] of x's type, expert_offset int32 [E + 1]; y [R, N].
at::Tensor grouped_gemm(const at::Tensor& x_RK, const at::Tensor& w,
                        const at::Tensor& expert_offset, WeightOrder order = WeightOrder::kOutIn);

// a [R, M], b [R, N]; g [E, M, N].
at::Tensor grouped_gemm_weight(const at::Tensor& a_RM, const at::Tensor& b_RN,
                               const at::Tensor& expert_offset);

// Whose tiles the kernel for any GPU takes on one of this compute capability (80: 8.0), for a line
// at the start of a run: "tiles of sm_80, computed".
std::string grouped_gemm_tiles(int capability);

}  // namespace troupe
