// The recorded backward of an operator over a path of experts (ffn_driver.h): cut in two halves, or
// whole.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "troupe/ops/moe_ffn/ffn_driver.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/record_late.h"

namespace troupe {

// The tensors that a forward saved for backward, by name. `path` holds the operands of the path
// that it makes.
struct FfnSaved {
  at::Tensor hidden;  // H
  std::function<std::unique_ptr<FfnBackend>()> path;
};

// Gradients in the types of their inputs: `type` of x, and of the scores its wide type.
TensorList in_types_of_inputs(const FfnGradTensors& grads, at::ScalarType type);

// The record's inputs are those of FfnInput, undefined where a call has none.
FfnNeeds ffn_needs(const Gradients& g);

class FfnHalves {
 public:
  using Read = std::function<FfnSaved(const TensorList& saved)>;
  explicit FfnHalves(Read read) : read_(std::move(read)) {}

  TensorList rows(const Gradients& g);     // of x and the scores; holds the operands of the others
  TensorList weights(const Gradients& g);  // of weights; once after each rows()
  TensorList whole(const Gradients& g) const;

 private:
  struct Left {
    std::function<std::unique_ptr<FfnBackend>()> path;
    FfnBetween between;
    at::ScalarType type;
  };

  Read read_;
  std::optional<Left> left_;
};

// Cuts `r`'s backward where its halves run at times of their own (record_halves); false: nothing is
// recorded. `name`: of the second half. `order`: of FfnOptions.
bool record_ffn_halves(Record r, const std::shared_ptr<FfnHalves>& halves, const char* name,
                       std::optional<BackwardOrder> order);

}  // namespace troupe
