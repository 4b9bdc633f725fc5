#include "troupe/ops/moe_ffn/ffn_halves.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace troupe {

TensorList in_types_of_inputs(const FfnGradTensors& grads, at::ScalarType type) {
  TensorList out(grads.begin(), grads.end());
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i].defined()) out[i] = out[i].to(i == FfnInput::kScores ? wide : type);
  }
  return out;
}

FfnNeeds ffn_needs(const Gradients& g) {
  TROUPE_CHECK(g.needs.size() == FfnInput::kCount, "an operator of experts records",
               FfnInput::kCount, "inputs, not", g.needs.size());
  FfnNeeds needs;
  std::copy(g.needs.begin(), g.needs.end(), needs.begin());
  return needs;
}

TensorList FfnHalves::rows(const Gradients& g) {
  const at::NoGradGuard no_grad;
  left_.reset();
  const at::Tensor& dO = g.outputs[0];
  const FfnNeeds needs = ffn_needs(g);
  FfnSaved saved = read_(g.saved);
  FfnRowsHalf half = ffn_rows_half(
      *saved.path(), {.grad_out = dO, .hidden = saved.hidden, .needs = needs, .overwrite = g.last});
  if (std::any_of(needs.begin() + FfnInput::kFirstWeight, needs.end(), [](bool n) { return n; })) {
    left_.emplace(Left{std::move(saved.path), std::move(half.between), dO.scalar_type()});
  }
  return in_types_of_inputs(half.grads, dO.scalar_type());
}

TensorList FfnHalves::weights(const Gradients& g) {
  const at::NoGradGuard no_grad;
  TROUPE_CHECK(left_.has_value(), "moe_ffn: gradients of weights before those of x, or twice");
  Left left = std::move(*left_);
  left_.reset();
  return in_types_of_inputs(ffn_weights_half(*left.path(), std::move(left.between), ffn_needs(g)),
                            left.type);
}

TensorList FfnHalves::whole(const Gradients& g) const {
  const at::NoGradGuard no_grad;
  const at::Tensor& dO = g.outputs[0];
  const FfnSaved saved = read_(g.saved);
  const FfnGradTensors grads = ffn_backward(
      *saved.path(),
      {.grad_out = dO, .hidden = saved.hidden, .needs = ffn_needs(g), .overwrite = g.last});
  return in_types_of_inputs(grads, dO.scalar_type());
}

bool record_ffn_halves(Record r, const std::shared_ptr<FfnHalves>& halves, const char* name,
                       std::optional<BackwardOrder> order) {
  r.backward = [halves](const Gradients& g) { return halves->rows(g); };
  return record_halves(r, {.name = name,
                           .first_weight = FfnInput::kFirstWeight,
                           .weights = [halves](const Gradients& g) { return halves->weights(g); },
                           .order = order});
}

}  // namespace troupe
