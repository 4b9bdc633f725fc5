// What the units of a model hand to each other in a step: the output of each, and the gradient of
// its input, by microbatch. In a pipeline some come from other ranks, or go to them: a send takes
// the output of a unit, or the gradient of its input, to the rank that computes on with it; a
// receive is posted where it stands in the list and waited for where the value is used. Sizes are
// known on both ends; a microbatch without rows sends nothing. The names of values, and what an action
// drops, are those that the proof of a step follows (schedule/unit_value.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "troupe/core/file/fault.h"
#include "troupe/distributed/group/stage_channels.h"
#include "troupe/distributed/status/pulse.h"
#include "troupe/nn/model/model.h"
#include "troupe/schedule/action.h"
#include "troupe/schedule/unit_value.h"

namespace troupe {

// What a pass through the units computes. Ranks that have made a pass of a kind with as many tokens a
// microbatch have run all of its kernels, but those of kOther (PL14).
enum class PassKind : uint8_t {
  kStep,
  kStepWithoutBudget,  // repeated (C7)
  kEvaluation,
  kReference,  // the model without its adapters, before a step of preference pairs
  kOther,  // may compute what no pass has: a search for a bad value, a token behind ever more others
};

class UnitValues {
 public:
  // All must outlive it. `pulse` records transfers, `options` are those of values.
  UnitValues(const Model& model, const at::TensorOptions& options, const Faults& faults,
             Pulse& pulse, std::shared_ptr<StageChannels> channels);

  struct Pass {
    PassKind kind = PassKind::kStep;
    bool training = true;  // of the context that the model is given
    int64_t step = 0;
  };
  // `own_tokens`: of each microbatch on this rank.
  void begin(std::vector<int64_t> own_tokens, const Pass& pass);
  void end();

  void send(const Action& action);
  void receive(const Action& action);

  // The output of the unit below, and the gradient of this unit's output: waited for where they come
  // from another rank. Undefined: of the first unit, of the last.
  at::Tensor input_of(const Action& action);
  at::Tensor gradient_of_output(const Action& action);
  void set_output(const Action& action, const at::Tensor& h);
  void set_input_gradient(const Action& action, const at::Tensor& gradient);
  // Drops what the action has read and no later action reads; `training`: of the list.
  void drop_after(const Action& action, bool training);

  int64_t kept() const { return std::ssize(values_); }
  int64_t microbatches() const { return std::ssize(own_tokens_); }

 private:
  struct Value {
    at::Tensor x;
    Pending arriving = {};  // from another rank
  };

  int64_t rows_of(const Action& transfer) const;
  at::Tensor arrived(const Action& action, Value& value);

  const Model& model_;
  const at::TensorOptions options_;
  const Faults& faults_;
  Pulse& pulse_;
  const std::shared_ptr<StageChannels> channels_;
  std::map<UnitValue, Value> values_;
  std::vector<int64_t> own_tokens_;
  Pass pass_;
  std::set<std::pair<PassKind, int64_t>> computed_;  // with as many tokens of a microbatch
};

}  // namespace troupe
