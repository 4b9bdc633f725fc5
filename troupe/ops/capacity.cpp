#include "troupe/ops/capacity.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <string>
#include <tuple>

#include "troupe/ops/routing_plan.h"
#include "troupe/ops/support/arg_check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using DropTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Mask = std::optional<at::Tensor>;

struct DropArgs {
  const at::Tensor& ids;      // [T, K]
  const at::Tensor& weights;  // [T, K]
  const Mask& valid;          // [T]
  int64_t experts;
  double factor;
  int64_t minimum;
  bool renormalize;
  std::string policy;

  static constexpr const char *kName = "drop_over_capacity",
                              *kResults = "(Tensor ids, Tensor weights, Tensor dropped)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("ids", a.ids, Dims{"TK"}, kIntType), arg("weights", a.weights, Dims{"TK"}),
             arg("valid", a.valid, Dims{"T"}), arg("experts", a.experts), arg("factor", a.factor),
             arg("minimum", a.minimum, Default{1}),
             arg("renormalize", a.renormalize, Default{false}),
             arg("policy", a.policy, Default{"probs"}));
  }

  DropOptions options() const {
    TROUPE_CHECK(policy == "probs" || policy == "position",
                 "drop_over_capacity: policy must be probs or position; it is", policy);
    return {.experts = experts,
            .rule = {.factor = factor, .minimum = minimum},
            .policy = policy == "probs" ? DropPolicy::kProbs : DropPolicy::kPosition,
            .renormalize = renormalize};
  }
};

struct DropBackwardArgs {
  const at::Tensor& grad;  // [T, K], as all
  const at::Tensor& ids;
  const at::Tensor& kept_ids;
  const at::Tensor& weights;
  int64_t experts;
  bool renormalize;

  static constexpr const char *kName = "drop_over_capacity_backward", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("grad", a.grad, Dims{"TK"}), arg("ids", a.ids, Dims{"TK"}),
             arg("kept_ids", a.kept_ids, Dims{"TK"}), arg("weights", a.weights, Dims{"TK"}, kLead),
             arg("experts", a.experts), arg("renormalize", a.renormalize));
  }
};

DropTensors drop_meta(const DropArgs& a) {
  a.options();
  check_args(a);
  return {at::empty_symint(a.ids.sym_sizes(), a.ids.options()),
          at::empty_symint(a.weights.sym_sizes(), a.weights.options()),
          at::empty_symint({}, a.ids.options().dtype(at::kLong))};
}

DropTensors drop_device(const DropArgs& a) {
  DropTensors out = drop_meta(a);
  const DropOptions options = a.options();
  const at::Tensor ids = a.ids.contiguous(), weights = a.weights.contiguous();
  const Plan plan = routing_plan(ids, {.experts = a.experts});
  DropOverCapacity args{.plan = plan_ref(plan, "drop_over_capacity"),
                        .ids = ptr<const int32_t>(ids, "drop_over_capacity: ids"),
                        .weights = view(weights, "drop_over_capacity: weights"),
                        .valid = ptr_or_null<const uint8_t>(a.valid, "drop_over_capacity: valid"),
                        .rule = options.rule,
                        .policy = options.policy,
                        .renormalize = options.renormalize,
                        .kept_ids = ptr<int32_t>(std::get<0>(out), "kept_ids"),
                        .kept_weights = mut_view(std::get<1>(out), "kept_weights"),
                        .dropped = ptr<int64_t>(std::get<2>(out), "dropped")};
  const at::Tensor workspace = at::empty({workspace_bytes(args)}, ids.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(ids.device(), args, drop_over_capacity_cpu, &CudaKernels::drop_over_capacity);
  return out;
}

at::Tensor drop_backward_meta(const DropBackwardArgs& a) {
  check_args(a);
  return at::empty_symint(a.weights.sym_sizes(), a.weights.options());
}

at::Tensor drop_backward_device(const DropBackwardArgs& a) {
  at::Tensor out = drop_backward_meta(a);
  const at::Tensor grad = a.grad.contiguous(), ids = a.ids.contiguous();
  const at::Tensor weights = a.weights.contiguous();
  const DropOverCapacityBackward args{
      .experts = a.experts,
      .ids = ptr<const int32_t>(ids, "drop_over_capacity: ids"),
      .kept_ids = ptr<const int32_t>(a.kept_ids, "drop_over_capacity: kept_ids"),
      .weights = view(weights, "drop_over_capacity: weights"),
      .grad_kept_weights = view(grad, "drop_over_capacity: gradient"),
      .renormalize = a.renormalize,
      .grad_weights = mut_view(out, "drop_over_capacity: grad_weights")};
  run(grad.device(), args, drop_over_capacity_backward_cpu,
      &CudaKernels::drop_over_capacity_backward);
  return out;
}

DropTensors drop_op(const DropArgs& a) {
  static const auto op = raw_op<decltype(drop_device)>();
  DropTensors out = op(a);
  record({.name = "drop_over_capacity",
          .inputs = {a.weights},
          .outputs = {std::get<1>(out)},
          .saved = {a.ids, std::get<0>(out), a.weights},
          .backward = [experts = a.experts,
                       renormalize = a.renormalize](const Gradients& g) -> TensorList {
            static const auto back = raw_op<decltype(drop_backward_device)>();
            return {back({g.outputs[0], g.saved[0], g.saved[1], g.saved[2], experts, renormalize})};
          }});
  return out;
}

}  // namespace

KeptSlots drop_over_capacity(const at::Tensor& ids_TK, const at::Tensor& weights_TK,
                             const Mask& valid_T, const DropOptions& o) {
  const char* policy = o.policy == DropPolicy::kProbs ? "probs" : "position";
  const auto [ids, weights, dropped] =
      drop_op({ids_TK, weights_TK, valid_T, o.experts, o.rule.factor, o.rule.minimum, o.renormalize,
               policy});
  return {ids, weights, dropped};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<drop_device, drop_meta, drop_op>(m);
  define<drop_backward_device, drop_backward_meta>(m);
}

}  // namespace troupe
