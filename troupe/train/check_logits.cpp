#include "troupe/train/check_logits.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>

#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/checkpoint/reader.h"
#include "troupe/nn/models/model.h"

namespace troupe {
namespace {

at::Tensor tokens(const ModelConfig& config) {
  constexpr int64_t kRows = 2, kMost = 32;
  const int64_t sequence = std::min(kMost, config.max_positions);
  at::Tensor out = at::empty({kRows, sequence}, at::kLong);
  auto* const ids = out.mutable_data_ptr<int64_t>();
  uint64_t x = 1;
  for (int64_t i = 0; i < out.numel(); ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;  // Knuth's, the upper bits
    ids[i] = static_cast<int64_t>((x >> 33) % static_cast<uint64_t>(config.vocab));
  }
  return out;
}

// `table` names the tensors that files hold; the rest is state that starts as in a new run.
at::Tensor logits_of(const ModelConfig& config, const std::set<std::string>& table,
                     const std::function<void(const CheckpointState&)>& fill) {
  const at::NoGradGuard no_grad;
  const std::unique_ptr<Model> model = build_model(config);
  CheckpointState state;
  model->for_each_param(-1, [&](const std::string& name, Param& p) {
    const bool each = p.per_expert && !p.experts.empty();
    if (!table.contains(each ? expert_name(name, p.experts[0]) : name)) {
      return initialise(p, name, 0);
    }
    p.allocate(at::TensorOptions(at::kFloat));
    p.value.fill_(std::numeric_limits<double>::quiet_NaN());
    state.add("model." + name, p);
  });
  fill(state);
  const Batch batch{.ids_BS = tokens(config)};
  return model->logits(hidden_states(*model, batch))
      .narrow(-1, 0, config.vocab)
      .to(at::kFloat)
      .contiguous();
}

}  // namespace

LogitsCheck check_logits(const std::string& hf_folder, const std::string& checkpoint,
                         const ModelConfig& model) {
  const HfWeights weights(hf_folder);
  std::set<std::string> table;
  for (const HfTensor& t : weights.table()) table.insert(t.name);
  const at::Tensor theirs =
      logits_of(weights.config().model, table,
                [&](const CheckpointState& state) { load_hf(weights, state); });
  // The checkpoint's own: an upcycled model has experts where the folder has none.
  std::set<std::string> saved;
  constexpr std::string_view kModel = "model.";
  const CheckpointReader reader(checkpoint);
  for (const auto& [name, tensor] : reader.tensors()) {
    if (name.starts_with(kModel)) saved.insert(name.substr(kModel.size()));
  }
  const at::Tensor ours = logits_of(model, saved, [&](const CheckpointState& state) {
    load(checkpoint, state, {.waive_unused = {"*"}, .cast = true}, CheckpointGroup{}, Faults());
  });
  TROUPE_CHECK(theirs.sizes() == ours.sizes(), theirs.sizes(), ours.sizes());
  LogitsCheck out{.positions = theirs.size(0) * theirs.size(1), .vocab = theirs.size(2)};
  out.equal = at::equal(theirs, ours);
  const auto* const a = theirs.const_data_ptr<float>();
  const auto* const b = ours.const_data_ptr<float>();
  const auto count = static_cast<double>(theirs.numel());
  for (int64_t i = 0; i < theirs.numel(); ++i) {
    const double one = a[i], apart = std::abs(one - double{b[i]});
    // NaN on one side alone; on both it is no difference, and equal is false all the same.
    const bool lost = std::isnan(apart) && std::isnan(a[i]) != std::isnan(b[i]);
    const double d = lost ? std::numeric_limits<double>::infinity() : std::isnan(apart) ? 0 : apart;
    out.max_difference = std::max(out.max_difference, d);
    out.mean_difference += d / count;
    out.largest = std::max(out.largest, std::abs(one));
    out.mean += std::abs(one) / count;
  }
  return out;
}

bool rounds(const std::string& checkpoint, const std::string& dtype) {
  if (dtype == "float32") return false;
  const Element to = dtype == "bfloat16" ? Element::kBF16 : Element::kF16;
  const CheckpointReader reader(checkpoint);
  return std::ranges::any_of(reader.tensors(), [&](const auto& entry) {
    return entry.first.starts_with("model.") && entry.second.element != to;
  });
}

bool within_tolerance(const LogitsCheck& check, bool rounded) {
  constexpr double kOtherOrder = 1e-6, kRounded = 5e-2;
  return check.equal || check.mean_difference <= (rounded ? kRounded : kOtherOrder) * check.mean;
}

}  // namespace troupe
