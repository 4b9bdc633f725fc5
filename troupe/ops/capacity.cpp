#include "troupe/ops/capacity.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <string>
#include <tuple>

#include "troupe/ops/routing_plan.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using DropTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Mask = std::optional<at::Tensor>;

// LONG: a schema's arguments, as of all that follow
DropOptions options_of(int64_t experts, double factor, int64_t minimum, bool renormalize,
                       const std::string& policy) {
  TROUPE_CHECK(policy == "probs" || policy == "position",
               "drop_over_capacity: policy must be probs or position; it is", policy);
  return {.experts = experts,
          .rule = {.factor = factor, .minimum = minimum},
          .policy = policy == "probs" ? DropPolicy::kProbs : DropPolicy::kPosition,
          .renormalize = renormalize};
}

// LONG: a schema's arguments
DropTensors drop_meta(const at::Tensor& ids_TK, const at::Tensor& weights_TK, const Mask& valid_T,
                      int64_t experts, double factor, int64_t minimum, bool renormalize,
                      std::string policy) {
  options_of(experts, factor, minimum, renormalize, policy);
  check_sizes(ids_TK, {-1, -1}, "drop_over_capacity: ids");
  check_dtype(ids_TK, at::kInt, "drop_over_capacity: ids");
  check_sizes(weights_TK, {ids_TK.sym_size(0), ids_TK.sym_size(1)}, "drop_over_capacity: weights");
  check_same_device(weights_TK, ids_TK, "drop_over_capacity: weights");
  if (valid_T.has_value()) {
    check_sizes(*valid_T, {ids_TK.sym_size(0)}, "drop_over_capacity: valid");
    check_same_device(*valid_T, ids_TK, "drop_over_capacity: valid");
  }
  return {at::empty_symint(ids_TK.sym_sizes(), ids_TK.options()),
          at::empty_symint(weights_TK.sym_sizes(), weights_TK.options()),
          at::empty_symint({}, ids_TK.options().dtype(at::kLong))};
}

// LONG: a schema's arguments
DropTensors drop_device(const at::Tensor& ids_TK, const at::Tensor& weights_TK, const Mask& valid_T,
                        int64_t experts, double factor, int64_t minimum, bool renormalize,
                        std::string policy) {
  DropTensors out =
      drop_meta(ids_TK, weights_TK, valid_T, experts, factor, minimum, renormalize, policy);
  const DropOptions options = options_of(experts, factor, minimum, renormalize, policy);
  const at::Tensor ids = ids_TK.contiguous(), weights = weights_TK.contiguous();
  const Plan plan = routing_plan(ids, {.experts = experts});
  DropOverCapacity args{.plan = plan_ref(plan, "drop_over_capacity"),
                        .ids = ptr<const int32_t>(ids, "drop_over_capacity: ids"),
                        .weights = view(weights, "drop_over_capacity: weights"),
                        .valid = ptr_or_null<const uint8_t>(valid_T, "drop_over_capacity: valid"),
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

at::Tensor drop_backward_meta(const at::Tensor& grad_TK, const at::Tensor& ids_TK,
                              const at::Tensor& kept_ids_TK, const at::Tensor& weights_TK,
                              int64_t /*experts*/, bool /*renormalize*/) {
  check_sizes(weights_TK, {-1, -1}, "drop_over_capacity_backward: weights");
  const auto check = [&](const at::Tensor& t, const char* name) {
    check_sizes(t, {weights_TK.sym_size(0), weights_TK.sym_size(1)}, name);
    check_same_device(t, weights_TK, name);
  };
  check(grad_TK, "drop_over_capacity_backward: grad");
  check(ids_TK, "drop_over_capacity_backward: ids");
  check(kept_ids_TK, "drop_over_capacity_backward: kept_ids");
  return at::empty_symint(weights_TK.sym_sizes(), weights_TK.options());
}

at::Tensor drop_backward_device(const at::Tensor& grad_TK, const at::Tensor& ids_TK,
                                const at::Tensor& kept_ids_TK, const at::Tensor& weights_TK,
                                int64_t experts, bool renormalize) {
  at::Tensor out =
      drop_backward_meta(grad_TK, ids_TK, kept_ids_TK, weights_TK, experts, renormalize);
  const at::Tensor grad = grad_TK.contiguous(), ids = ids_TK.contiguous();
  const at::Tensor weights = weights_TK.contiguous();
  const DropOverCapacityBackward args{
      .experts = experts,
      .ids = ptr<const int32_t>(ids, "drop_over_capacity: ids"),
      .kept_ids = ptr<const int32_t>(kept_ids_TK, "drop_over_capacity: kept_ids"),
      .weights = view(weights, "drop_over_capacity: weights"),
      .grad_kept_weights = view(grad, "drop_over_capacity: gradient"),
      .renormalize = renormalize,
      .grad_weights = mut_view(out, "drop_over_capacity: grad_weights")};
  run(grad.device(), args, drop_over_capacity_backward_cpu,
      &CudaKernels::drop_over_capacity_backward);
  return out;
}

// LONG: a schema's arguments
DropTensors drop_autograd(const at::Tensor& ids_TK, const at::Tensor& weights_TK,
                          const Mask& valid_T, int64_t experts, double factor, int64_t minimum,
                          bool renormalize, std::string policy) {
  static const auto op = raw_op<decltype(drop_device)>("troupe::drop_over_capacity");
  DropTensors out =
      op(ids_TK, weights_TK, valid_T, experts, factor, minimum, renormalize, std::move(policy));
  record({.name = "drop_over_capacity",
          .inputs = {weights_TK},
          .outputs = {std::get<1>(out)},
          .saved = {ids_TK, std::get<0>(out), weights_TK},
          .backward = [experts, renormalize](const Gradients& g) -> TensorList {
            static const auto back =
                raw_op<decltype(drop_backward_device)>("troupe::drop_over_capacity_backward");
            return {back(g.outputs[0], g.saved[0], g.saved[1], g.saved[2], experts, renormalize)};
          }});
  return out;
}

}  // namespace

KeptSlots drop_over_capacity(const at::Tensor& ids_TK, const at::Tensor& weights_TK,
                             const Mask& valid_T, const DropOptions& o) {
  const char* policy = o.policy == DropPolicy::kProbs ? "probs" : "position";
  const auto [ids, weights, dropped] = drop_autograd(
      ids_TK, weights_TK, valid_T, o.experts, o.rule.factor, o.rule.minimum, o.renormalize, policy);
  return {ids, weights, dropped};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m,
         "drop_over_capacity(Tensor ids, Tensor weights, Tensor? valid, int experts, float factor, "
         "int minimum=1, bool renormalize=False, str policy=\"probs\") -> (Tensor ids, Tensor "
         "weights, Tensor dropped)",
         drop_device, drop_meta, drop_autograd);
  define(m,
         "drop_over_capacity_backward(Tensor grad, Tensor ids, Tensor kept_ids, Tensor weights, "
         "int experts, bool renormalize) -> Tensor",
         drop_backward_device, drop_backward_meta);
}

}  // namespace troupe
