#include "troupe/ops/moe_ffn/ffn_driver.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

std::vector<size_t> inputs_of(FfnStep step) {
  using In = FfnInput;
  switch (step) {
    case FfnStep::kRows: return {In::kX, In::kScores};
    case FfnStep::kUp: return {In::kW1, In::kB1, In::kUp};
    case FfnStep::kDown: return {In::kW2, In::kB2};
    case FfnStep::kWeights: break;
  }
  return {In::kW1, In::kB1, In::kUp, In::kW2, In::kB2};
}

// What no later step reads does not wait for the end.
void drop_operands(FfnStep step, FfnBetween& between) {
  if (step == FfnStep::kRows) between.grad_scores = between.grad_rows = at::Tensor();
  if (step == FfnStep::kDown) between.act = at::Tensor();
}

// The steps of one backward, or of a half.
class Steps {
 public:
  Steps(const FfnBackend& path, FfnBetween operands) : between(std::move(operands)), path_(path) {}

  void run(FfnStep step, const FfnNeeds& needs) {
    FfnNeeds rest{};
    for (const size_t i : inputs_of(step)) {
      at::Tensor made = std::exchange(between.grads[i], at::Tensor());
      if (!needs[i]) continue;
      rest[i] = !made.defined();
      grads[i] = std::move(made);
    }
    if (std::find(rest.begin(), rest.end(), true) != rest.end()) make(step, rest);
    for (const size_t i : inputs_of(step)) between.needs[i] = false;
    drop_operands(step, between);
  }

  FfnGradTensors grads;
  FfnBetween between;

 private:
  void make(FfnStep step, const FfnNeeds& needs) {
    FfnGradTensors made = step == FfnStep::kRows ? path_.rows_grad(needs, between)
                                                 : path_.weight_grad(needs, between);
    for (size_t i = 0; i < made.size(); ++i) {
      if (needs[i]) grads[i] = std::move(made[i]);
    }
  }

  const FfnBackend& path_;
};

Steps begin_backward(const FfnBackend& path, const FfnHiddenGrad& of) {
  FfnBetween between = path.hidden_grad(of);
  between.needs = of.needs;
  return {path, std::move(between)};
}

}  // namespace

FfnForward ffn_forward(const FfnBackend& path, bool hidden_only) {
  const FfnUp up = path.up(hidden_only);
  return {.out = hidden_only ? at::Tensor() : path.down(up), .hidden = up.hidden};
}

FfnGradTensors ffn_backward(const FfnBackend& path, const FfnHiddenGrad& of) {
  Steps steps = begin_backward(path, of);
  for (const FfnStep step : path.order()) steps.run(step, of.needs);
  return std::move(steps.grads);
}

FfnRowsHalf ffn_rows_half(const FfnBackend& path, FfnHiddenGrad of) {
  of.weights_later = true;
  Steps steps = begin_backward(path, of);
  steps.run(FfnStep::kRows, of.needs);
  return {std::move(steps.grads), std::move(steps.between)};
}

FfnGradTensors ffn_weights_half(const FfnBackend& path, FfnBetween between, const FfnNeeds& needs) {
  Steps steps(path, std::move(between));
  for (const FfnStep step : path.order()) {
    if (step != FfnStep::kRows) steps.run(step, needs);
  }
  return std::move(steps.grads);
}

}  // namespace troupe
