#include "troupe/ops/compat/gather.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <tuple>

#include "troupe/kernels/binned_plan/binned_plan.h"
#include "troupe/ops/combine.h"
#include "troupe/ops/permute.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using BinnedTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Bins = std::optional<at::Tensor>;

BinnedTensors binned_plan_meta(const at::Tensor& indices, const at::Tensor& bins,
                               const Bins& padded_bins, int64_t K, c10::SymInt /*capacity*/,
                               c10::SymInt rows) {
  check_sizes(indices, {-1}, "gather, scatter: indices");
  check_sizes(bins, {-1}, "gather, scatter: bins");
  if (padded_bins.has_value()) {
    check_sizes(*padded_bins, {bins.sym_size(0)}, "gather, scatter: padded_bins");
    check_same_device(*padded_bins, indices, "gather, scatter: padded_bins");
  }
  check_same_device(bins, indices, "gather, scatter: bins");
  TROUPE_CHECK(K >= 1 && indices.sym_size(0) % K == 0, "gather, scatter: indices has",
               indices.sym_size(0), "elements; it must have a multiple of top_k", K);
  const auto ints = indices.options();
  return {at::empty_symint({bins.sym_size(0) + 1}, ints), at::empty_symint({rows}, ints),
          at::empty_symint({rows}, ints), at::empty_symint({indices.sym_size(0) / K, K}, ints),
          at::empty_symint({bins.sym_size(0)}, ints.dtype(at::kLong))};
}

BinnedTensors binned_plan_device(const at::Tensor& indices_in, const at::Tensor& bins_in,
                                 const Bins& padded_in, int64_t K, c10::SymInt capacity,
                                 c10::SymInt rows) {
  BinnedTensors out = binned_plan_meta(indices_in, bins_in, padded_in, K, capacity, rows);
  const at::Tensor indices = indices_in.contiguous(), bins = bins_in.contiguous();
  const Bins padded = padded_in.has_value() ? Bins(padded_in->contiguous()) : std::nullopt;
  const BinnedPlan args{
      .tokens = indices.size(0) / K,
      .choices = K,
      .experts = bins.size(0),
      .indices = ptr<const int32_t>(indices, "gather, scatter: indices"),
      .num_indices = indices.size(0),
      .bins = ptr<const int32_t>(bins, "gather, scatter: bins"),
      .padded_bins = ptr_or_null<const int32_t>(padded, "gather, scatter: padded_bins"),
      .capacity = capacity.guard_int(__FILE__, __LINE__),
      .rows = rows.guard_int(__FILE__, __LINE__),
      .expert_offset = ptr<int32_t>(std::get<0>(out), "expert_offset"),
      .row_src = ptr<int32_t>(std::get<1>(out), "row_src"),
      .row_slot = ptr<int32_t>(std::get<2>(out), "row_slot"),
      .slot_row = ptr<int32_t>(std::get<3>(out), "slot_row"),
      .counts = ptr<int64_t>(std::get<4>(out), "counts")};
  run(indices.device(), args, binned_plan_cpu, &CudaKernels::binned_plan);
  return out;
}

// What tells the three forms apart.
struct Form {
  Bins padded_bins = std::nullopt;
  c10::SymInt capacity = 0;
  c10::SymInt rows = 0;
};

Plan make_plan(const at::Tensor& indices, const at::Tensor& bins, int64_t K, const Form& form) {
  static const auto op = raw_op<decltype(binned_plan_device)>("troupe::binned_plan");
  const auto [offset, src, slot, row, counts] =
      op(indices, bins, form.padded_bins, K, form.capacity, form.rows);
  return {offset, src, slot, row, counts};
}

// The weights as combine takes them; the cast is differentiable.
at::Tensor weights_of(const at::Tensor& weights, const at::Tensor& x, const Plan& plan) {
  TROUPE_CHECK(weights.sym_numel() == plan.slot_row.sym_numel(),
               "scatter: weights must have an element for", "each of", plan.slot_row.sym_numel(),
               "slots; it has", weights.sym_numel());
  TROUPE_CHECK(weights.is_floating_point(), "scatter: weights must be of a float type; it is",
               weights.scalar_type());
  const auto wide = wide_type(x);
  return weights.reshape_symint(plan.slot_row.sym_sizes()).to(wide);
}

}  // namespace

at::Tensor gather(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& bins,
                  int64_t K) {
  return permute(x, make_plan(indices, bins, K, {.rows = indices.sym_numel()}));
}

at::Tensor scatter(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                   const at::Tensor& bins, int64_t K) {
  const Plan plan = make_plan(indices, bins, K, {.rows = x.sym_size(0)});
  return combine(x, plan, weights_of(weights, x, plan));
}

at::Tensor padded_gather(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& bins,
                         const at::Tensor& padded_bins, int64_t K, c10::SymInt rows) {
  const c10::SymInt R = rows >= 0 ? rows : c10::SymInt(padded_bins[-1].item<int64_t>());
  return permute(x, make_plan(indices, bins, K, {.padded_bins = padded_bins, .rows = R}));
}

at::Tensor padded_scatter(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                          const at::Tensor& bins, const at::Tensor& padded_bins, int64_t K) {
  const Plan plan =
      make_plan(indices, bins, K, {.padded_bins = padded_bins, .rows = x.sym_size(0)});
  return combine(x, plan, weights_of(weights, x, plan));
}

at::Tensor binned_gather(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& bins,
                         c10::SymInt capacity, int64_t K) {
  TROUPE_CHECK(capacity >= 1, "binned_gather: capacity must be at least 1; it is", capacity);
  const c10::SymInt E = bins.sym_size(0);
  const Form form{.capacity = capacity, .rows = E * capacity};
  return permute(x, make_plan(indices, bins, K, form)).view_symint({E, capacity, x.sym_size(1)});
}

at::Tensor binned_scatter(const at::Tensor& x, const at::Tensor& indices, const at::Tensor& weights,
                          const at::Tensor& bins, int64_t K) {
  check_sizes(x, {bins.sym_size(0), -1, -1}, "binned_scatter: x");
  const c10::SymInt E = x.sym_size(0);
  const c10::SymInt C = x.sym_size(1);
  TROUPE_CHECK(C >= 1, "binned_scatter: x has no rows for an expert");
  const Plan plan = make_plan(indices, bins, K, {.capacity = C, .rows = E * C});
  return combine(x.reshape_symint({E * C, x.sym_size(2)}), plan, weights_of(weights, x, plan));
}

// The operators are made of others, each with its gradient: they need none of their own.
TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(
      m,
      "binned_plan(Tensor indices, Tensor bins, Tensor? padded_bins, int top_k, SymInt capacity, "
      "SymInt rows) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
      binned_plan_device, binned_plan_meta);
  m.def("gather(Tensor x, Tensor indices, Tensor bins, int top_k) -> Tensor", &gather);
  m.def("scatter(Tensor x, Tensor indices, Tensor weights, Tensor bins, int top_k) -> Tensor",
        &scatter);
  m.def(
      "padded_gather(Tensor x, Tensor indices, Tensor bins, Tensor padded_bins, int top_k, "
      "SymInt rows=-1) -> Tensor",
      &padded_gather);
  m.def(
      "padded_scatter(Tensor x, Tensor indices, Tensor weights, Tensor bins, Tensor padded_bins, "
      "int top_k) -> Tensor",
      &padded_scatter);
  m.def(
      "binned_gather(Tensor x, Tensor indices, Tensor bins, SymInt capacity, int top_k) -> Tensor",
      &binned_gather);
  m.def(
      "binned_scatter(Tensor x, Tensor indices, Tensor weights, Tensor bins, int top_k) -> Tensor",
      &binned_scatter);
}

}  // namespace troupe
