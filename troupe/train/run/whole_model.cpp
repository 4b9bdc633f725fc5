#include "troupe/train/run/whole_model.h"

#include <ATen/core/grad_mode.h>

#include <functional>
#include <limits>
#include <set>

#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/core/check.h"
#include "troupe/nn/model/model.h"

namespace troupe {
namespace {

constexpr const char* kNotSaved =
    "is kept in few bits by its run (model.lora.frozen), whose checkpoints do not hold it: `troupe "
    "eval` and `troupe generate` read it from checkpoint.init_from";

// `table` names the tensors that files hold.
std::unique_ptr<Model> filled_model(const ModelConfig& config, const at::TensorOptions& options,
                                    const std::set<std::string>& table,
                                    const std::function<void(const CheckpointState&)>& fill) {
  const at::NoGradGuard no_grad;
  std::unique_ptr<Model> model = build_model(config);
  CheckpointState state;
  model->for_each_param(-1, [&](const std::string& name, Param& p) {
    const bool in_bits = p.low_bit.has_value();
    p.low_bit.reset();  // in the type that is asked for
    p.frozen = true;
    p.allocate(options);
    const bool each = p.per_expert && !p.experts.empty();
    if (!table.contains(each ? expert_name(name, p.experts[0]) : name)) {
      if (in_bits) fail(Code::kStateMismatch, name, kNotSaved);
      return initialize(p, name, 0);
    }
    p.value.fill_(std::numeric_limits<double>::quiet_NaN());
    state.add("model." + name, p);
  });
  fill(state);
  return model;
}

}  // namespace

std::unique_ptr<Model> model_of_folder(const HfWeights& weights, const at::TensorOptions& options) {
  std::set<std::string> table;
  for (const HfTensor& t : weights.table()) table.insert(t.name);
  return filled_model(weights.config().model, options, table,
                      [&](const CheckpointState& state) { load_hf(weights, state); });
}

std::unique_ptr<Model> model_of_checkpoint(const std::string& checkpoint, const ModelConfig& config,
                                           const at::TensorOptions& options) {
  // The checkpoint's own names: an upcycled model has experts where the folder has none.
  std::set<std::string> saved;
  constexpr std::string_view kModel = "model.";
  const CheckpointReader reader(checkpoint);
  for (const auto& [name, tensor] : reader.tensors()) {
    if (name.starts_with(kModel)) saved.insert(name.substr(kModel.size()));
  }
  return filled_model(config, options, saved, [&](const CheckpointState& state) {
    load(checkpoint, state, {.waive_unused = {"*"}, .cast = true}, CheckpointGroup{}, Faults());
  });
}

}  // namespace troupe
