// The products of moe_sm90.h with 8-bit operands (e4m3, kernels/fp8), on the tensor cores of Hopper
// GPUs (compute capability 9.0). ops/moe_ffn/moe_ffn_fp8.h says which tensor is rounded how; here
// bytes and scales come in, and leave where the next product reads them.
//
//   up       H[r, :]    = sx[src(r)] sum_k ws[k] X8[src(r), k] W1_e[:, k];  A as in moe_sm90.h,
//                         rounded to bf16, then to 8 bits with a scale for each row and 128 columns
//   down     Y[r, :]    = sum_k as[r, k] ws[k] A8[r, k] W2_e[:, k];  as[r] with `whole_rows`
//   hidden   G[r, :]    = so[src(r)] sum_k ws[k] dO8[src(r), k] W2t_e[:, k];  dS, dH, A as in
//                         moe_sm90.h
//   rows     dXt[r, :]  = sum_k hs[r, k] ws[k] dH8[r, k] W1t_e[:, k]
//   weight   dW_e[m, n] = sum_p cs[p] X8[src(r(p)), m] C[n, p]       C: `columns` of fp8_tiles.h
//
// k runs in groups of 128, each with the scales of its group: tensor cores sum 128 products, and
// that partial sum is scaled and added in fp32 (Q8). `weight`: p runs over the padded rows of
// expert e in groups of 128; X8's bytes come without their scale, which C took up before it was
// rounded.
//
// Weights are [E, N, K] bytes, K last: `up` reads W1 and `down` W2 as they are, `hidden` and `rows`
// their transposed copies; one grid of scales serves both, [E, 2, F/128, D/128] of W1, [E, D/128,
// F/128] of W2. D and F are multiples of 128, E <= 1024. Behind the scales of A, dH and W2 64 more
// floats are read (kScalesBehind), whatever they are.
//
// Rounded to bf16 once: H, dH, A, Y, dXt, dW. Pad rows, rows past offset[E], experts without rows,
// NaN, waves, graphs and repeatability: as in moe_sm90.h.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/view.h"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe {

constexpr int64_t kScalesBehind = 64;

struct MoeUpFp8Sm90 {
  PlanRef plan;
  Mat<const uint8_t> x;          // [T, D]
  const float* x_scales;         // [T]
  Mat<const uint8_t> w1;         // [E 2F, D]
  const float* w1_scales;        // [E, 2, F/128, D/128]
  const float* score = nullptr;  // [T, K], or null
  MutRef h;                      // [R, 2F]  out, bf16
  Mat<uint8_t> a;                // [R, F]   out
  float* a_scales;               // [F/128, R]  out
  int waves = 1;
};

struct MoeDownFp8Sm90 {
  PlanRef plan;
  Mat<const uint8_t> a;    // [R, F]
  const float* a_scales;   // [F/128, R]; with `whole_rows` [R]
  Mat<const uint8_t> w2;   // [E D, F]
  const float* w2_scales;  // [E, D/128, F/128]
  MutRef y;                // [R, D]  out, bf16
  int waves = 1;
  bool whole_rows = false;  // a row of A has one scale
};

struct MoeHiddenGradFp8Sm90 {
  PlanRef plan;
  Mat<const uint8_t> grad_out;   // [T, D]
  const float* grad_out_scales;  // [T]
  Mat<const uint8_t> w2t;        // [E F, D]
  const float* w2_scales;        // [E, D/128, F/128]
  MatRef h;                      // [R, 2F]
  const float* score = nullptr;  // [T, K], or null
  MutRef grad_h;                 // [R, 2F]  out, bf16
  MutRef a;                      // [R, F]   out, bf16
  float* grad_score = nullptr;   // [T, K]   out; 0 where a slot has no row
  void* workspace = nullptr;     // workspace_bytes()
  int waves = 1;
};

// `hidden` whose results leave in 8 bits, once, in the orders in which the next products read them:
// dH and A rounded to bf16, and of that what fp8_row_tiles (fp8_tiles.h) makes, with x_scales and
// grad_out_scales as factors. So all bytes are those of the two calls; dH and A are never in memory.
struct MoeHiddenTilesFp8Sm90 {
  PlanRef plan;
  Mat<const uint8_t> grad_out;   // [T, D]
  const float* grad_out_scales;  // [T]
  const float* x_scales;         // [T]
  Mat<const uint8_t> w2t;        // [E F, D]
  const float* w2_scales;        // [E, D/128, F/128]
  MatRef h;                      // [R, 2F]
  const float* score = nullptr;  // [T, K], or null
  Mat<uint8_t> grad_h;           // [R, 2F]    out
  float* grad_h_scales;          // [2F/128, R]  out
  Mat<uint8_t> grad_h_columns;   // [2F, P]    out; P as below
  float* grad_h_column_scales;   // [P/128, 2F/128]  out
  Mat<uint8_t> a_columns;        // [F, P]     out
  float* a_column_scales;        // [P/128, F/128]  out
  float* grad_score = nullptr;   // [T, K]   out; 0 where a slot has no row
  void* workspace = nullptr;     // workspace_bytes()
  int waves = 1;
};

struct MoeRowsGradFp8Sm90 {
  PlanRef plan;
  Mat<const uint8_t> grad_h;   // [R, 2F]
  const float* grad_h_scales;  // [2F/128, R]
  Mat<const uint8_t> w1t;      // [E D, 2F]
  const float* w1_scales;      // [E, 2F/128, D/128]; 2F a multiple of 128, F of 64
  MutRef grad_rows;            // [R, D]  out, bf16
  int waves = 1;
};

struct MoeWeightGradFp8Sm90 {
  PlanRef plan;
  Mat<const uint8_t> rows;     // [T, M], gathered through row_src
  Mat<const uint8_t> columns;  // [N, P], P = 128 fp8_row_blocks(R, E)
  const float* column_scales;  // [P/128, N/128]
  MutRef grad;                 // [E M, N], or [E N, M] if transposed  out, bf16
  bool transposed = false;
  int waves = 1;
};

void validate(const MoeUpFp8Sm90& args);
void validate(const MoeDownFp8Sm90& args);
void validate(const MoeHiddenGradFp8Sm90& args);
void validate(const MoeHiddenTilesFp8Sm90& args);
void validate(const MoeRowsGradFp8Sm90& args);
void validate(const MoeWeightGradFp8Sm90& args);

int64_t workspace_bytes(const MoeHiddenGradFp8Sm90& args);
int64_t workspace_bytes(const MoeHiddenTilesFp8Sm90& args);

// In double, of the bytes and scales that they are given.
void moe_up_fp8_sm90_ref(const MoeUpFp8Sm90& args);
void moe_down_fp8_sm90_ref(const MoeDownFp8Sm90& args);
void moe_hidden_grad_fp8_sm90_ref(const MoeHiddenGradFp8Sm90& args);
void moe_hidden_tiles_fp8_sm90_ref(const MoeHiddenTilesFp8Sm90& args);
void moe_rows_grad_fp8_sm90_ref(const MoeRowsGradFp8Sm90& args);
void moe_weight_grad_fp8_sm90_ref(const MoeWeightGradFp8Sm90& args);

void moe_up_fp8_sm90_cuda(const MoeUpFp8Sm90& args, cudaStream_t stream);
void moe_down_fp8_sm90_cuda(const MoeDownFp8Sm90& args, cudaStream_t stream);
void moe_hidden_grad_fp8_sm90_cuda(const MoeHiddenGradFp8Sm90& args, cudaStream_t stream);
void moe_hidden_tiles_fp8_sm90_cuda(const MoeHiddenTilesFp8Sm90& args, cudaStream_t stream);
void moe_rows_grad_fp8_sm90_cuda(const MoeRowsGradFp8Sm90& args, cudaStream_t stream);
void moe_weight_grad_fp8_sm90_cuda(const MoeWeightGradFp8Sm90& args, cudaStream_t stream);

}  // namespace troupe
