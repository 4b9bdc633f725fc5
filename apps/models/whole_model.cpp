#include "apps/models/whole_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/nn/model/model.h"

namespace troupe {
namespace {

// `table` names the tensors that files hold.
std::unique_ptr<Model> filled_model(const ModelConfig& config, const std::set<std::string>& table,
                                    const std::function<void(const CheckpointState&)>& fill) {
  const at::NoGradGuard no_grad;
  std::unique_ptr<Model> model = build_model(config);
  CheckpointState state;
  model->for_each_param(-1, [&](const std::string& name, Param& p) {
    const bool each = p.per_expert && !p.experts.empty();
    if (!table.contains(each ? expert_name(name, p.experts[0]) : name)) {
      return initialize(p, name, 0);
    }
    p.allocate(at::TensorOptions(at::kFloat));
    p.value.fill_(std::numeric_limits<double>::quiet_NaN());
    state.add("model." + name, p);
  });
  fill(state);
  return model;
}

}  // namespace

std::unique_ptr<Model> model_of_folder(const HfWeights& weights) {
  std::set<std::string> table;
  for (const HfTensor& t : weights.table()) table.insert(t.name);
  return filled_model(weights.config().model, table,
                      [&](const CheckpointState& state) { load_hf(weights, state); });
}

std::unique_ptr<Model> model_of_checkpoint(const std::string& checkpoint,
                                           const ModelConfig& config) {
  // The checkpoint's own names: an upcycled model has experts where the folder has none.
  std::set<std::string> saved;
  constexpr std::string_view kModel = "model.";
  const CheckpointReader reader(checkpoint);
  for (const auto& [name, tensor] : reader.tensors()) {
    if (name.starts_with(kModel)) saved.insert(name.substr(kModel.size()));
  }
  return filled_model(config, saved, [&](const CheckpointState& state) {
    load(checkpoint, state, {.waive_unused = {"*"}, .cast = true}, CheckpointGroup{}, Faults());
  });
}

at::Tensor sample_ids(int64_t vocab, int64_t max_positions) {
  constexpr int64_t kRows = 2, kMost = 32;
  at::Tensor out = at::empty({kRows, std::min(kMost, max_positions)}, at::kLong);
  auto* const ids = out.mutable_data_ptr<int64_t>();
  uint64_t x = 1;
  for (int64_t i = 0; i < out.numel(); ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;  // Knuth's, the upper bits
    ids[i] = static_cast<int64_t>((x >> 33) % static_cast<uint64_t>(vocab));
  }
  return out;
}

}  // namespace troupe
