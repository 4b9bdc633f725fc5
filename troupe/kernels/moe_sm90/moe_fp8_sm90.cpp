// The contracts of the launchers; the references are in moe_fp8_sm90_ref.cpp.
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"
#include "troupe/kernels/moe_sm90/moe_sm90.h"

namespace troupe {
namespace {

void check_place(const void* data, bool needed, const char* name) {
  TROUPE_CHECK(!needed || data != nullptr, name, "is null");
  TROUPE_CHECK(reinterpret_cast<uintptr_t>(data) % 16 == 0, name, "is not 16-byte aligned");
}

// A contiguous matrix of bytes of the given shape, whose rows the copy engine can address.
template <class T>
void check_bytes(const Mat<T>& m, int64_t rows, int64_t cols, const char* name) {
  TROUPE_CHECK(m.rows == rows && m.cols == cols && m.ld == cols, name, "is", m.rows, "x", m.cols,
               "and must be", rows, "x", cols);
  check_place(m.data, rows * cols > 0, name);
}

template <class View>
void check_bf16(const View& m, int64_t rows, int64_t cols, const char* name) {
  TROUPE_CHECK(m.dtype == Dtype::kBF16, name, "is", troupe::name(m.dtype), "not bf16");
  TROUPE_CHECK(m.rows == rows && m.cols == cols && m.ld == cols, name, "is", m.rows, "x", m.cols,
               "and must be", rows, "x", cols);
  check_place(m.data, rows * cols > 0, name);
}

void check_width(int64_t width, const char* name) {
  TROUPE_CHECK(width > 0 && width % kFp8Tile == 0, name, width, "is no multiple of", kFp8Tile);
}

void check_plan(const PlanRef& plan, int64_t d, int64_t f) {
  TROUPE_CHECK(0 < plan.experts && plan.experts <= kMaxExpertsSm90, "experts", plan.experts);
  TROUPE_CHECK(plan.expert_offset != nullptr, "expert_offset is null");
  TROUPE_CHECK(plan.rows == 0 || (plan.row_src != nullptr && plan.row_slot != nullptr), "rows",
               plan.rows);
  check_width(d, "width");
  check_width(f, "hidden width");
}

void check_scales(const float* scales, int64_t rows, const char* name) {
  TROUPE_CHECK(rows == 0 || scales != nullptr, name, "are null");
}

}  // namespace

void validate(const MoeUpFp8Sm90& a) {
  const int64_t d = a.x.cols, f = a.a.cols, E = a.plan.experts, R = a.plan.rows;
  check_plan(a.plan, d, f);
  check_bytes(a.x, a.plan.tokens, d, "x");
  check_bytes(a.w1, E * 2 * f, d, "w1");
  check_bf16(a.h, R, 2 * f, "h");
  check_bytes(a.a, R, f, "a");
  check_scales(a.x_scales, a.plan.tokens, "x_scales");
  check_scales(a.w1_scales, E, "w1_scales");
  check_scales(a.a_scales, R, "a_scales");
}

void validate(const MoeDownFp8Sm90& a) {
  const int64_t d = a.y.cols, f = a.a.cols, E = a.plan.experts, R = a.plan.rows;
  check_plan(a.plan, d, f);
  check_bytes(a.a, R, f, "a");
  check_bytes(a.w2, E * d, f, "w2");
  check_bf16(a.y, R, d, "y");
  check_scales(a.a_scales, R, "a_scales");
  check_scales(a.w2_scales, E, "w2_scales");
}

void validate(const MoeHiddenGradFp8Sm90& a) {
  const int64_t d = a.grad_out.cols, f = a.a.cols, E = a.plan.experts, R = a.plan.rows;
  check_plan(a.plan, d, f);
  check_bytes(a.grad_out, a.plan.tokens, d, "grad_out");
  check_bytes(a.w2t, E * f, d, "w2t");
  check_bf16(a.h, R, 2 * f, "h");
  check_bf16(a.grad_h, R, 2 * f, "grad_h");
  check_bf16(a.a, R, f, "a");
  check_scales(a.grad_out_scales, a.plan.tokens, "grad_out_scales");
  check_scales(a.w2_scales, E, "w2_scales");
  TROUPE_CHECK(a.plan.tokens * a.plan.choices == 0 ||
                   (a.grad_score != nullptr && a.plan.slot_row != nullptr),
               "grad_score or slot_row is null");
  TROUPE_CHECK(R == 0 || a.workspace != nullptr, "workspace is null");
}

void validate(const MoeHiddenTilesFp8Sm90& a) {
  const int64_t d = a.grad_out.cols, f = a.h.cols / 2, E = a.plan.experts, R = a.plan.rows;
  const int64_t padded = kFp8Tile * fp8_row_blocks(R, E);
  check_plan(a.plan, d, f);
  check_bytes(a.grad_out, a.plan.tokens, d, "grad_out");
  check_bytes(a.w2t, E * f, d, "w2t");
  check_bf16(a.h, R, 2 * f, "h");
  check_bytes(a.grad_h, R, 2 * f, "grad_h");
  check_bytes(a.grad_h_columns, 2 * f, padded, "grad_h_columns");
  check_bytes(a.a_columns, f, padded, "a_columns");
  check_scales(a.grad_out_scales, a.plan.tokens, "grad_out_scales");
  check_scales(a.x_scales, a.plan.tokens, "x_scales");
  check_scales(a.w2_scales, E, "w2_scales");
  check_scales(a.grad_h_scales, R, "grad_h_scales");
  check_scales(a.grad_h_column_scales, R, "grad_h_column_scales");
  check_scales(a.a_column_scales, R, "a_column_scales");
  TROUPE_CHECK(a.plan.tokens * a.plan.choices == 0 ||
                   (a.grad_score != nullptr && a.plan.slot_row != nullptr),
               "grad_score or slot_row is null");
  TROUPE_CHECK(R == 0 || a.workspace != nullptr, "workspace is null");
}

void validate(const MoeRowsGradFp8Sm90& a) {
  const int64_t d = a.grad_rows.cols, k = a.grad_h.cols, E = a.plan.experts, R = a.plan.rows;
  check_plan(a.plan, d, k);
  check_bytes(a.grad_h, R, k, "grad_h");
  check_bytes(a.w1t, E * d, k, "w1t");
  check_bf16(a.grad_rows, R, d, "grad_rows");
  check_scales(a.grad_h_scales, R, "grad_h_scales");
  check_scales(a.w1_scales, E, "w1_scales");
}

void validate(const MoeWeightGradFp8Sm90& a) {
  const int64_t m = a.rows.cols, n = a.columns.rows, E = a.plan.experts;
  check_plan(a.plan, m, n);
  check_bytes(a.rows, a.plan.tokens, m, "rows");
  check_bytes(a.columns, n, kFp8Tile * fp8_row_blocks(a.plan.rows, E), "columns");
  check_bf16(a.grad, E * (a.transposed ? n : m), a.transposed ? m : n, "grad");
  check_scales(a.column_scales, a.plan.rows, "column_scales");
}

int64_t workspace_bytes(const MoeHiddenGradFp8Sm90& a) {
  return a.plan.rows * ((a.a.cols + 255) / 256) * 4;
}
int64_t workspace_bytes(const MoeHiddenTilesFp8Sm90& a) {
  return a.plan.rows * ((a.h.cols / 2 + 255) / 256) * 4;
}

}  // namespace troupe
