// Matrix products over the rows of experts, whose number of rows only the device knows.
//
// Segment e is rows [expert_offset[e], expert_offset[e + 1]) of the packed buffer (kernels/
// routing_plan); src(r) = row_src[r] where row_src is given and the operand is gathered, else r.
//
//   GroupedGemm        c[r, n] (=|+=) scale_r * sum_k a[src(r), k] B_e[k, n]
//                                     + bias_scale_r * bias[e, n]
//                      for every r of segment e, with B_e[k, n] = b[e, n, k] (transpose_b) or
//                      b[e, k, n]; scale_r = scale[i], bias_scale_r = bias_scale[i], each 1 where
//                      not given, with i = row_slot[r] where row_slot is given, else r
//   GroupedGemmWeight  c[e, m, n] (=|+=) sum over r of segment e of a[src(r), m] b[src(r), n]
//
// Products and sums are fp32 over rising k (or r), in double for f64; a result is rounded once, and
// `accumulate` adds to the old value before that. The order of a sum depends on the widths and the
// type alone: a row's bits are the same whatever the other rows, the number of rows and experts,
// and the tile.
// Two runs give the same bits.
//
// Rows at or past expert_offset[E] are neither read nor written, and no row of one segment enters
// another's result, NaN or not. row_src[r] < 0 marks a pad: its row of `a` counts as zeros
// (GroupedGemm) or it adds nothing (GroupedGemmWeight, whatever the operand that is not gathered
// holds); row_slot[r] < 0: both scales count as 0. An expert without rows writes nothing in
// GroupedGemm, and zeros in GroupedGemmWeight (or leaves c alone where it accumulates).
//
// Widths are any from 1 on, below 2^31. Rows that do not begin at multiples of 16 bytes take a
// slower path; in bf16 on a Hopper GPU, dense operands whose widths are multiples of 64 take a
// faster one (kernels/moe_sm90) where no bias, scale, sum or pad is asked for. c must not overlap
// an operand. f64 runs in the reference alone.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/view.h"
#include "troupe/kernels/grouped_gemm/gemm_table.h"

namespace troupe {

struct GroupedGemm {
  MatRef a;         // [R, K], or [S, K] where gathered
  MatRef b;         // [E N, K], or [E K, N] if not transpose_b: [E][...] flat
  MutRef c;         // [R, N]  out; R is the host's bound on expert_offset[E]
  int64_t experts;  // E
  const int32_t* expert_offset = nullptr;  // [E + 1]
  const int32_t* row_src = nullptr;        // [R]  optional: gathers a
  bool transpose_b = true;
  MatRef bias = {};                   // [E, N]  optional, of a's type
  const float* scale = nullptr;       // [R], or as long as row_slot needs; optional
  const float* bias_scale = nullptr;  // likewise
  const int32_t* row_slot = nullptr;  // [R]  optional: where the scales of a row are
  bool accumulate = false;
  int waves = 1;       // kernels/moe_sm90
  GemmTile tile = {};  // on a GPU: by the generic kernel with this tile (gemm_plan.h)
};

struct GroupedGemmWeight {
  MatRef a;                                // [R, M], or [S, M] where gathered
  MatRef b;                                // [R, N], or [S, N] where gathered
  MutRef c;                                // [E M, N]  out; of a's type, or f32
  int64_t experts;                         // E
  const int32_t* expert_offset = nullptr;  // [E + 1]
  const int32_t* row_src = nullptr;        // [R]  optional
  bool gather_a = false;                   // a's rows are row_src[r]
  bool gather_b = false;
  bool finite_pads = false;  // at pads the operand that is not gathered holds finite numbers
  bool accumulate =
      false;      // f32 and f64 results only: a rounding each time would eat small gradients
  int waves = 1;  // kernels/moe_sm90
  // kernels/moe_sm90: rows of a segment of an expert's sum (SegmentsSm90). 0, or another kernel:
  // one sum over all rows.
  int64_t segment_rows = 0;
  void* workspace = nullptr;  // workspace_bytes()
  GemmTile tile = {};         // on a GPU: by the generic kernel with this tile (gemm_plan.h)
};

// out[r, :] = 0 for the rows r from *first on: where first is expert_offset + E, those that the
// products leave alone.
struct ZeroRows {
  MutRef out;
  const int32_t* first;
};

void validate(const ZeroRows& args);
void zero_rows_ref(const ZeroRows& args);
void zero_rows_cuda(const ZeroRows& args, cudaStream_t stream);

void validate(const GroupedGemm& args);
void validate(const GroupedGemmWeight& args);
int64_t workspace_bytes(const GroupedGemmWeight& args);     // of segments
int64_t flops(const GroupedGemm& args, int64_t true_rows);  // 2 rows N K
int64_t flops(const GroupedGemmWeight& args, int64_t true_rows);

void grouped_gemm_ref(const GroupedGemm& args);
void grouped_gemm_cuda(const GroupedGemm& args, cudaStream_t stream);

void grouped_gemm_weight_ref(const GroupedGemmWeight& args);
void grouped_gemm_weight_cuda(const GroupedGemmWeight& args, cudaStream_t stream);

}  // namespace troupe
