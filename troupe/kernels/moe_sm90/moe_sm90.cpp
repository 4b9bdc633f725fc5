// The contracts of the launchers; the references are in moe_sm90_ref.cpp.
#include "troupe/kernels/moe_sm90/moe_sm90.h"

namespace troupe {
namespace {

// A contiguous bf16 matrix of the given shape, whose rows the copy engine can address.
template <class View>
void check_matrix(const View& view, int64_t rows, int64_t cols, const char* name) {
  TROUPE_CHECK(view.dtype == Dtype::kBF16, name, "is", troupe::name(view.dtype), "not bf16");
  TROUPE_CHECK(view.rows == rows && view.cols == cols, name, "is", view.rows, "x", view.cols, "not",
               rows, "x", cols);
  TROUPE_CHECK(view.ld == cols, name, "has row stride", view.ld, "of", cols);
  TROUPE_CHECK(rows == 0 || view.data != nullptr, name, "is null");
  TROUPE_CHECK(reinterpret_cast<uintptr_t>(view.data) % 16 == 0, name, "is not 16-byte aligned");
}

void check_width(int64_t width, const char* name) {
  TROUPE_CHECK(width > 0 && width % 64 == 0, name, width, "is no multiple of 64");
}

void check_experts(int64_t experts, const int32_t* expert_offset) {
  TROUPE_CHECK(0 < experts && experts <= kMaxExpertsSm90, "experts", experts);
  TROUPE_CHECK(expert_offset != nullptr);
}

void check_plan(const PlanRef& plan) {
  check_experts(plan.experts, plan.expert_offset);
  TROUPE_CHECK(plan.rows == 0 || (plan.row_src != nullptr && plan.row_slot != nullptr), "rows",
               plan.rows);
}

void check_gradient(const MutRef& grad, int64_t rows, int64_t cols, bool accumulate,
                    const char* name) {
  TROUPE_CHECK(grad.dtype == Dtype::kF32 || (grad.dtype == Dtype::kBF16 && !accumulate), name, "is",
               troupe::name(grad.dtype), "accumulate", accumulate);
  TROUPE_CHECK(grad.rows == rows && grad.cols == cols && grad.ld == cols, name, "is", grad.rows,
               "x", grad.cols, "not", rows, "x", cols);
  TROUPE_CHECK(grad.data != nullptr && reinterpret_cast<uintptr_t>(grad.data) % 16 == 0, name,
               "is null or not 16-byte aligned");
}

void check_segments(const SegmentsSm90& segments, int64_t bytes) {
  TROUPE_CHECK(segments.rows >= 0 && segments.rows % 64 == 0, "segments of", segments.rows, "rows");
  TROUPE_CHECK(bytes == 0 || (segments.workspace != nullptr &&
                              reinterpret_cast<uintptr_t>(segments.workspace) % 16 == 0),
               "segments of", segments.rows, "rows have no workspace, or one that is not aligned");
}

}  // namespace

void validate(const MoeUpSm90& a) {
  const int64_t d = a.x.cols, f = a.a.cols;
  check_plan(a.plan);
  check_width(d, "width");
  check_width(f, "hidden width");
  check_matrix(a.x, a.plan.tokens, d, "x");
  check_matrix(a.w1, a.plan.experts * 2 * f, d, "w1");
  check_matrix(a.h, a.plan.rows, 2 * f, "h");
  check_matrix(a.a, a.plan.rows, f, "a");
}

void validate(const MoeDownSm90& a) {
  const int64_t d = a.y.cols, f = a.a.cols;
  check_plan(a.plan);
  check_width(d, "width");
  check_width(f, "hidden width");
  check_matrix(a.a, a.plan.rows, f, "a");
  check_matrix(a.w2, a.plan.experts * d, f, "w2");
  check_matrix(a.y, a.plan.rows, d, "y");
}

void validate(const MoeHiddenGradSm90& a) {
  const int64_t d = a.grad_out.cols, f = a.a.cols;
  check_plan(a.plan);
  check_width(d, "width");
  check_width(f, "hidden width");
  check_matrix(a.grad_out, a.plan.tokens, d, "grad_out");
  check_matrix(a.w2, a.plan.experts * d, f, "w2");
  check_matrix(a.h, a.plan.rows, 2 * f, "h");
  check_matrix(a.grad_h, a.plan.rows, 2 * f, "grad_h");
  check_matrix(a.a, a.plan.rows, f, "a");
  TROUPE_CHECK(a.plan.tokens * a.plan.choices == 0 ||
               (a.grad_score != nullptr && a.plan.slot_row != nullptr));
  TROUPE_CHECK(a.plan.rows == 0 || a.workspace != nullptr);
}

void validate(const MoeRowsGradSm90& a) {
  const int64_t d = a.grad_rows.cols, f = a.grad_h.cols / 2;
  check_plan(a.plan);
  check_width(d, "width");
  check_width(f, "hidden width");
  check_matrix(a.grad_h, a.plan.rows, 2 * f, "grad_h");
  check_matrix(a.w1, a.plan.experts * 2 * f, d, "w1");
  check_matrix(a.grad_rows, a.plan.rows, d, "grad_rows");
}

void validate(const MoeDownGradSm90& a) {
  const int64_t d = a.grad_out.cols, f = a.a.cols;
  check_plan(a.plan);
  check_width(d, "width");
  check_width(f, "hidden width");
  check_matrix(a.grad_out, a.plan.tokens, d, "grad_out");
  check_matrix(a.a, a.plan.rows, f, "a");
  check_gradient(a.grad_w2, a.plan.experts * d, f, a.accumulate, "grad_w2");
  check_segments(a.segments, workspace_bytes(a));
}

void validate(const MoeUpGradSm90& a) {
  const int64_t d = a.x.cols, f = a.grad_h.cols / 2;
  check_plan(a.plan);
  check_width(d, "width");
  check_width(f, "hidden width");
  check_matrix(a.x, a.plan.tokens, d, "x");
  check_matrix(a.grad_h, a.plan.rows, 2 * f, "grad_h");
  check_gradient(a.grad_w1, a.plan.experts * 2 * f, d, a.accumulate, "grad_w1");
  check_segments(a.segments, workspace_bytes(a));
}

void validate(const RowsProductSm90& a) {
  const int64_t k = a.a.cols, n = a.c.cols;
  check_experts(a.experts, a.expert_offset);
  check_width(k, "K");
  check_width(n, "N");
  check_matrix(a.a, a.row_src != nullptr ? a.a.rows : a.c.rows, k, "a");
  check_matrix(a.b, a.experts * (a.transpose_b ? n : k), a.transpose_b ? k : n, "b");
  check_matrix(a.c, a.c.rows, n, "c");
}

void validate(const WeightProductSm90& a) {
  const int64_t m = a.a.cols, n = a.b.cols;
  check_experts(a.experts, a.expert_offset);
  const bool gathers = a.gather_a || a.gather_b;
  const int64_t packed = a.gather_a ? a.b.rows : a.a.rows;  // a list of no rows has no address
  TROUPE_CHECK(
      !(a.gather_a && a.gather_b) && (a.row_src != nullptr ? gathers : !gathers || packed == 0),
      "gathers", a.gather_a, a.gather_b, "for", packed, "rows");
  check_width(m, "M");
  check_width(n, "N");
  check_matrix(a.a, gathers ? a.a.rows : a.b.rows, m, "a");
  check_matrix(a.b, a.b.rows, n, "b");
  check_gradient(a.c, a.experts * m, n, a.accumulate, "c");
  check_segments(a.segments, workspace_bytes(a));
}

int64_t workspace_bytes(const MoeHiddenGradSm90& a) {
  const int64_t tiles = (a.a.cols + 255) / 256;
  return a.plan.rows * tiles * 4;
}

int64_t workspace_bytes(const MoeDownGradSm90& a) {
  return workspace_bytes(a.segments, a.plan.rows, a.plan.experts, a.grad_out.cols, a.a.cols);
}
int64_t workspace_bytes(const MoeUpGradSm90& a) {
  return workspace_bytes(a.segments, a.plan.rows, a.plan.experts, a.x.cols, a.grad_h.cols);
}
int64_t workspace_bytes(const WeightProductSm90& a) {
  const int64_t rows = a.gather_b ? a.a.rows : a.b.rows;
  return workspace_bytes(a.segments, rows, a.experts, a.a.cols, a.b.cols);
}

}  // namespace troupe
