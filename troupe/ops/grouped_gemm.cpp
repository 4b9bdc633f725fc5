#include "troupe/ops/grouped_gemm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "troupe/core/number/round.h"
#include "troupe/kernels/grouped_gemm/grouped_gemm.h"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/blas.h"
#include "troupe/ops/support/cuda_plugin.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/tasks.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

constexpr int64_t kTaskRows = 512;  // of the result: the same tasks for any number of threads

// CPU products run in float or double.
bool needs_f32(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
}

// The CUDA kernels write all of it, with zero_rows; those of the CPU leave zeros alone.
at::Tensor unwritten(c10::SymIntArrayRef sizes, const at::TensorOptions& options) {
  return options.device().is_cuda() ? at::empty_symint(sizes, options)
                                    : at::zeros_symint(sizes, options);
}

MatRef stacked(const at::Tensor& w, const char* name) {
  return view(w.view({w.size(0) * w.size(1), w.size(2)}), name);
}

template <class T>
Operand<T> operand(const Mat<const T>& m, int64_t row, bool transposed) {
  return {m.row(row), m.ld, transposed};
}

// The segments' rows, cut into tasks.
struct RowTask {
  int64_t expert, row, rows;
};
std::vector<RowTask> row_tasks(const GroupedGemm& x) {
  std::vector<RowTask> tasks;
  for (int64_t e = 0; e < x.experts; ++e) {
    const int64_t end = x.expert_offset[e + 1];
    for (int64_t r = x.expert_offset[e]; r < end; r += kTaskRows) {
      tasks.push_back({e, r, std::min(kTaskRows, end - r)});
    }
  }
  return tasks;
}

template <class T>
void multiply_rows(const GroupedGemm& x) {
  const auto a = x.a.as<T>(), b = x.b.as<T>();
  const auto c = x.c.as<T>();
  const std::vector<RowTask> tasks = row_tasks(x);
  const int64_t stride = x.transpose_b ? c.cols : a.cols;  // rows of b for an expert
  WorkerScratch<T> scratch(kGemmScratch);
  run_tasks(static_cast<int64_t>(tasks.size()), [&](int64_t i, int64_t worker) {
    const auto [e, row, rows] = tasks[i];
    gemm<T>({.m = rows,
             .n = c.cols,
             .k = a.cols,
             .a = operand(a, row, false),
             .b = operand(b, e * stride, x.transpose_b),
             .c = c.row(row),
             .ldc = c.ld},
            scratch.of(worker));
  });
}

template <class T>
void sum_outer_products(const GroupedGemmWeight& x) {
  const auto a = x.a.as<T>(), b = x.b.as<T>();
  const auto c = x.c.as<T>();
  const int64_t across = ceil_div(a.cols, kTaskRows);
  WorkerScratch<T> scratch(kGemmScratch);
  run_tasks(x.experts * across, [&](int64_t i, int64_t worker) {
    const int64_t e = i / across, first = i % across * kTaskRows, row = x.expert_offset[e];
    gemm<T>({.m = std::min(kTaskRows, a.cols - first),
             .n = c.cols,
             .k = x.expert_offset[e + 1] - row,
             .a = {a.row(row) + first, a.ld, true},
             .b = operand(b, row, false),
             .c = c.row(e * a.cols + first),
             .ldc = c.ld},
            scratch.of(worker));
  });
}

// The kernels' contract, then PyTorch's BLAS. Nothing is gathered, scaled or accumulated here.
void grouped_gemm_blas(const GroupedGemm& x, const Pool& /*pool*/) {
  validate(x);
  x.a.dtype == Dtype::kF64 ? multiply_rows<double>(x) : multiply_rows<float>(x);
}
void grouped_gemm_weight_blas(const GroupedGemmWeight& x, const Pool& /*pool*/) {
  validate(x);
  x.a.dtype == Dtype::kF64 ? sum_outer_products<double>(x) : sum_outer_products<float>(x);
}

void check_offset(const at::Tensor& expert_offset, const at::Tensor& x, const char* name) {
  check_sizes(expert_offset, {-1}, name);
  check_same_device(expert_offset, x, name);
  check_dtype(expert_offset, at::kInt, name);
  TROUPE_CHECK(expert_offset.sym_size(0) > 1, name,
               "must have an element more than there are experts");
}

// The sizes of the result.
std::vector<c10::SymInt> check_product(const at::Tensor& x, const at::Tensor& w,
                                       const at::Tensor& expert_offset, bool w_out_in) {
  const int in = w_out_in ? 2 : 1, out = w_out_in ? 1 : 2;
  check_sizes(x, {-1, -1}, "grouped_gemm: x");
  check_offset(expert_offset, x, "grouped_gemm: expert_offset");
  check_sizes(w, {expert_offset.sym_size(0) - 1, -1, -1}, "grouped_gemm: w");
  TROUPE_CHECK(w.sym_size(in) == x.sym_size(1), "grouped_gemm: w must take", x.sym_size(1),
               "inputs, x's columns; it takes", w.sym_size(in));
  check_dtype(w, x.scalar_type(), "grouped_gemm: w");
  check_same_device(w, x, "grouped_gemm: w");
  return {x.sym_size(0), w.sym_size(out)};
}

at::Tensor grouped_gemm_meta(const at::Tensor& x, const at::Tensor& w,
                             const at::Tensor& expert_offset, bool w_out_in) {
  return at::zeros_symint(check_product(x, w, expert_offset, w_out_in), x.options());
}

at::Tensor grouped_gemm_device(const at::Tensor& x, const at::Tensor& w,
                               const at::Tensor& expert_offset, bool w_out_in) {
  if (needs_f32(x)) {
    check_dtype(w, x.scalar_type(), "grouped_gemm: w");
    return grouped_gemm_device(x.to(at::kFloat), w.to(at::kFloat), expert_offset, w_out_in)
        .to(x.scalar_type());
  }
  const auto sizes = check_product(x, w, expert_offset, w_out_in);
  check_segments(expert_offset, x.size(0), "grouped_gemm: expert_offset");
  at::Tensor y = unwritten(sizes, x.options());
  const at::Tensor rows = rowwise(x), weights = w.contiguous();
  const GroupedGemm args{
      .a = view(rows, "grouped_gemm: x"),
      .b = stacked(weights, "grouped_gemm: w"),
      .c = mut_view(y, "grouped_gemm: y"),
      .experts = w.size(0),
      .expert_offset = ptr<const int32_t>(expert_offset, "grouped_gemm: expert_offset"),
      .transpose_b = w_out_in};
  run(x.device(), args, grouped_gemm_blas, &CudaKernels::grouped_gemm);
  if (x.is_cuda()) {
    run_cuda(x.device(), ZeroRows{args.c, args.expert_offset + args.experts},
             &CudaKernels::zero_rows);
  }
  return y;
}

std::vector<c10::SymInt> check_weight_product(const at::Tensor& a, const at::Tensor& b,
                                              const at::Tensor& expert_offset) {
  check_sizes(a, {-1, -1}, "grouped_gemm_weight: a");
  check_sizes(b, {a.sym_size(0), -1}, "grouped_gemm_weight: b");
  check_dtype(b, a.scalar_type(), "grouped_gemm_weight: b");
  check_same_device(b, a, "grouped_gemm_weight: b");
  check_offset(expert_offset, a, "grouped_gemm_weight: expert_offset");
  return {expert_offset.sym_size(0) - 1, a.sym_size(1), b.sym_size(1)};
}

at::Tensor grouped_gemm_weight_meta(const at::Tensor& a, const at::Tensor& b,
                                    const at::Tensor& expert_offset) {
  return at::zeros_symint(check_weight_product(a, b, expert_offset), a.options());
}

at::Tensor grouped_gemm_weight_device(const at::Tensor& a, const at::Tensor& b,
                                      const at::Tensor& expert_offset) {
  if (needs_f32(a)) {
    check_dtype(b, a.scalar_type(), "grouped_gemm_weight: b");
    return grouped_gemm_weight_device(a.to(at::kFloat), b.to(at::kFloat), expert_offset)
        .to(a.scalar_type());
  }
  at::Tensor g = unwritten(check_weight_product(a, b, expert_offset), a.options());
  check_segments(expert_offset, a.size(0), "grouped_gemm_weight: expert_offset");
  const at::Tensor a_rows = rowwise(a), b_rows = rowwise(b);
  GroupedGemmWeight args{
      .a = view(a_rows, "grouped_gemm_weight: a"),
      .b = view(b_rows, "grouped_gemm_weight: b"),
      .c = mut_view(g.view({g.size(0) * g.size(1), g.size(2)}), "grouped_gemm_weight: g"),
      .experts = g.size(0),
      .expert_offset = ptr<const int32_t>(expert_offset, "grouped_gemm_weight: expert_offset")};
  // One expert's few tiles leave multiprocessors idle: 0.69 of the time (gpu_ops, 32768 rows to
  // 2048 x 1024). With 128 experts it would take 1.05 (65536 rows to 1536 x 2048).
  const bool hopper = a.is_cuda() && cuda_plugin().runs_sm90_code(a.device().index());
  if (hopper && a.scalar_type() == at::kBFloat16 && args.experts == 1) {
    args.segment_rows = choose_weight_segment(args.a.cols, args.b.cols);
  }
  at::Tensor workspace;
  if (a.is_cuda() && workspace_bytes(args) > 0) {
    workspace = at::empty({workspace_bytes(args)}, a.options().dtype(at::kByte));
    args.workspace = workspace.mutable_data_ptr();
  }
  run(a.device(), args, grouped_gemm_weight_blas, &CudaKernels::grouped_gemm_weight);
  return g;
}

at::Tensor multiply(const at::Tensor& x, const at::Tensor& w, const at::Tensor& expert_offset,
                    bool w_out_in) {
  static const auto op = raw_op<decltype(grouped_gemm_device)>("troupe::grouped_gemm");
  return op(x, w, expert_offset, w_out_in);
}
at::Tensor outer(const at::Tensor& a, const at::Tensor& b, const at::Tensor& expert_offset) {
  static const auto op =
      raw_op<decltype(grouped_gemm_weight_device)>("troupe::grouped_gemm_weight");
  return op(a, b, expert_offset);
}

at::Tensor grouped_gemm_op(const at::Tensor& x, const at::Tensor& w,
                           const at::Tensor& expert_offset, bool w_out_in) {
  at::Tensor y = multiply(x, w, expert_offset, w_out_in);
  record({.name = "grouped_gemm",
          .inputs = {x, w},
          .outputs = {y},
          .saved = {x, w, expert_offset},
          .backward = [w_out_in](const Gradients& g) -> TensorList {
            const at::Tensor &grad = g.outputs[0], &x_ = g.saved[0], &offset = g.saved[2];
            TensorList out(2);
            if (g.needs[0]) out[0] = multiply(grad, g.saved[1], offset, !w_out_in);
            if (g.needs[1]) out[1] = w_out_in ? outer(grad, x_, offset) : outer(x_, grad, offset);
            return out;
          }});
  return y;
}

at::Tensor grouped_gemm_weight_op(const at::Tensor& a, const at::Tensor& b,
                                  const at::Tensor& expert_offset) {
  at::Tensor g = outer(a, b, expert_offset);
  record({.name = "grouped_gemm_weight",
          .inputs = {a, b},
          .outputs = {g},
          .saved = {a, b, expert_offset},
          .backward = [](const Gradients& given) -> TensorList {
            const at::Tensor &grad = given.outputs[0], &offset = given.saved[2];
            TensorList out(2);
            if (given.needs[0]) out[0] = multiply(given.saved[1], grad, offset, true);
            if (given.needs[1]) out[1] = multiply(given.saved[0], grad, offset, false);
            return out;
          }});
  return g;
}

}  // namespace

std::string grouped_gemm_tiles(int capability) {
  const GemmEntry& entry = gemm_entry(capability);
  return "tiles of sm_" + std::to_string(entry.capability) +
         (entry.measured ? ", measured" : ", computed");
}

at::Tensor grouped_gemm(const at::Tensor& x_RK, const at::Tensor& w,
                        const at::Tensor& expert_offset, WeightOrder order) {
  return grouped_gemm_op(x_RK, w, expert_offset, order == WeightOrder::kOutIn);
}

at::Tensor grouped_gemm_weight(const at::Tensor& a_RM, const at::Tensor& b_RN,
                               const at::Tensor& expert_offset) {
  return grouped_gemm_weight_op(a_RM, b_RN, expert_offset);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "grouped_gemm(Tensor x, Tensor w, Tensor expert_offset, bool w_out_in) -> Tensor",
         grouped_gemm_device, grouped_gemm_meta, grouped_gemm_op);
  define(m, "grouped_gemm_weight(Tensor a, Tensor b, Tensor expert_offset) -> Tensor",
         grouped_gemm_weight_device, grouped_gemm_weight_meta, grouped_gemm_weight_op);
}

}  // namespace troupe
