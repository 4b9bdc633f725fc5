// The products of a mixture-of-experts feed-forward layer with SwiGLU experts, in bf16 on Hopper
// GPUs (compute capability 9.0): six kernels over rows packed by expert (routing_plan.h).
//
//   up       H[r, :] = X[src(r), :] W1_e^T;  A[r, u] = s_r silu(H[r, gate u]) H[r, up u]
//   down     Y[r, :] = A[r, :] W2_e^T
//   hidden   G[r, :] = dO[src(r), :] W2_e;   dS_r = sum_u G[r, u] silu(gate) up
//            d(up) = s_r G silu(gate);  d(gate) = s_r G up silu'(gate);  A as in `up`
//   rows     dXt[r, :] = dH[r, :] W1_e
//   grad W2  dW2_e[d, u] = sum_r dO[src(r), d] A[r, u]
//   grad W1  dW1_e[j, d] = sum_r dH[r, j] X[src(r), d]
//
// r runs over the rows of expert e: offset[e] <= r < offset[e + 1]; src = row_src, s_r =
// score[row_slot[r]] (1 where `score` is null: then the weight belongs into the combine). Products
// accumulate in fp32. Rounded to bf16 once: H, A, Y, dH, dXt, dW (unless fp32). A comes from the
// rounded H, with the same bits forward and backward; G is never rounded.
//
// Shapes: T tokens, D width, F hidden width of an expert, E experts, R rows (the host's bound). D
// and F are multiples of 64, E <= 1024. W1 is [E, 2F, D]: F gate rows, then F up rows; W2 is [E, D,
// F]. H is private to `up` and `hidden`: in a row, the words of 16 units are together
// (hidden_column). dH is plain: F gate columns, then F up columns.
//
// Rows at or past offset[E] are neither read nor written. Pad rows (row_src = -1) read as zeros and
// have s = 0. An expert without rows gets a zero gradient, or keeps it where it accumulates. A NaN
// in one expert's rows reaches no other's. Every launcher is asynchronous, allocates nothing, reads
// no count on the host and may be captured into a graph. Bitwise repeatable.
//
// `waves`: the grid is this many times what the GPU holds at once. With 1 a block's share of the
// tiles is settled before it starts, which is fastest on a GPU of its own; beside another's
// kernels, such as collectives that hold multiprocessors for longer than a product takes, blocks
// that find no room make all wait. With 4 those that are done take over what could not start: on
// two H200 products beside a sum over ranks took 1.25 times as long and not 1.5; alone 1 % longer.
// No bit changes.
//
// The same products with 8-bit operands: moe_fp8_sm90.h.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/view.h"
#include "troupe/kernels/moe_sm90/moe_fp8_sm90.h"
#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe {

constexpr int64_t kMaxExpertsSm90 = 1024;

// Where H keeps unit u's gate in its row of 2F; its up is 2 further.
constexpr int64_t hidden_column(int64_t u) {
  const int64_t in_group = u % 16, block = in_group / 8, quad = in_group % 8 / 2;
  return u / 16 * 32 + quad * 8 + block * 4 + u % 2;
}

struct MoeUpSm90 {
  PlanRef plan;
  MatRef x;                      // [T, D]
  MatRef w1;                     // [E 2F, D]
  const float* score = nullptr;  // [T, K], or null
  MutRef h;                      // [R, 2F]  out
  MutRef a;                      // [R, F]   out
  int waves = 1;
};

struct MoeDownSm90 {
  PlanRef plan;
  MatRef a;   // [R, F]
  MatRef w2;  // [E D, F]
  MutRef y;   // [R, D]  out
  int waves = 1;
};

struct MoeHiddenGradSm90 {
  PlanRef plan;
  MatRef grad_out;               // [T, D]
  MatRef w2;                     // [E D, F]
  MatRef h;                      // [R, 2F]
  const float* score = nullptr;  // [T, K], or null
  MutRef grad_h;                 // [R, 2F]  out
  MutRef a;                      // [R, F]   out
  float* grad_score = nullptr;   // [T, K]   out; 0 where a slot has no row
  void* workspace = nullptr;     // workspace_bytes()
  int waves = 1;
};

struct MoeRowsGradSm90 {
  PlanRef plan;
  MatRef grad_h;     // [R, 2F]
  MatRef w1;         // [E 2F, D]
  MutRef grad_rows;  // [R, D]  out
  int waves = 1;
};

struct MoeDownGradSm90 {
  PlanRef plan;
  MatRef grad_out;          // [T, D]
  MatRef a;                 // [R, F]
  MutRef grad_w2;           // [E D, F]  out, bf16 or f32
  bool accumulate = false;  // f32 alone: grad_w2 += instead of =
  int waves = 1;
  SegmentsSm90 segments = {};
};

struct MoeUpGradSm90 {
  PlanRef plan;
  MatRef x;        // [T, D]
  MatRef grad_h;   // [R, 2F]
  MutRef grad_w1;  // [E 2F, D]  out, bf16 or f32
  bool accumulate = false;
  int waves = 1;
  SegmentsSm90 segments = {};
};

// Products of that form as such, for experts of other kinds: what kernels/grouped_gemm runs here
// where nothing but the product is asked for.
//
//   rows      C[r, :] = A[src(r), :] B_e^T, or A[src(r), :] B_e where B is [E K, N]
//   weight    C_e[m, n] (+)= sum_r A[src_a(r), m] B[src_b(r), n]; A or B is gathered, or neither
//
// Without row_src src(r) = r. At pads what is not gathered must hold finite numbers.
struct RowsProductSm90 {
  int64_t experts;               // E
  const int32_t* expert_offset;  // [E + 1]
  const int32_t* row_src;        // [R], or null
  MatRef a;                      // [R, K]; [S, K] where gathered
  MatRef b;                      // [E N, K]; [E K, N] if not transpose_b
  MutRef c;                      // [R, N]  out
  bool transpose_b = true;
  int waves = 1;
};

struct WeightProductSm90 {
  int64_t experts;
  const int32_t* expert_offset;
  const int32_t* row_src;  // [R], or null
  MatRef a;                // [R, M]; [S, M] where gathered
  MatRef b;                // [R, N]; [S, N] where gathered
  MutRef c;                // [E M, N]  out, bf16 or f32
  bool gather_a = false, gather_b = false;
  bool accumulate = false;
  int waves = 1;
  SegmentsSm90 segments = {};
};

void validate(const MoeUpSm90& args);
void validate(const MoeDownSm90& args);
void validate(const MoeHiddenGradSm90& args);
void validate(const MoeRowsGradSm90& args);
void validate(const MoeDownGradSm90& args);
void validate(const MoeUpGradSm90& args);
void validate(const RowsProductSm90& args);
void validate(const WeightProductSm90& args);

int64_t workspace_bytes(const MoeHiddenGradSm90& args);
int64_t workspace_bytes(const MoeDownGradSm90& args);
int64_t workspace_bytes(const MoeUpGradSm90& args);
int64_t workspace_bytes(const WeightProductSm90& args);

void moe_up_sm90_ref(const MoeUpSm90& args);
void moe_down_sm90_ref(const MoeDownSm90& args);
void moe_hidden_grad_sm90_ref(const MoeHiddenGradSm90& args);
void moe_rows_grad_sm90_ref(const MoeRowsGradSm90& args);
void moe_down_grad_sm90_ref(const MoeDownGradSm90& args);
void moe_up_grad_sm90_ref(const MoeUpGradSm90& args);

void moe_up_sm90_cuda(const MoeUpSm90& args, cudaStream_t stream);
void moe_down_sm90_cuda(const MoeDownSm90& args, cudaStream_t stream);
void moe_hidden_grad_sm90_cuda(const MoeHiddenGradSm90& args, cudaStream_t stream);
void moe_rows_grad_sm90_cuda(const MoeRowsGradSm90& args, cudaStream_t stream);
void moe_down_grad_sm90_cuda(const MoeDownGradSm90& args, cudaStream_t stream);
void moe_up_grad_sm90_cuda(const MoeUpGradSm90& args, cudaStream_t stream);
void rows_product_sm90_cuda(const RowsProductSm90& args, cudaStream_t stream);
void weight_product_sm90_cuda(const WeightProductSm90& args, cudaStream_t stream);

}  // namespace troupe
