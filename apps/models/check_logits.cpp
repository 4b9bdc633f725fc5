#include "apps/models/check_logits.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "apps/models/sample_ids.h"
#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/nn/model/model.h"
#include "troupe/train/run/whole_model.h"

namespace troupe {
namespace {

at::Tensor logits_of(Model& model) {
  const at::NoGradGuard no_grad;
  const ModelConfig& config = model.config();
  const Batch batch{.ids_BS = sample_ids(config.vocab, config.max_positions)};
  return model.logits(hidden_states(model, batch))
      .narrow(-1, 0, config.vocab)
      .to(at::kFloat)
      .contiguous();
}

}  // namespace

LogitsCheck check_logits(const std::string& hf_folder, const std::string& checkpoint,
                         const ModelConfig& model) {
  const at::Tensor theirs = logits_of(*model_of_folder(HfWeights(hf_folder)));
  const at::Tensor ours = logits_of(*model_of_checkpoint(checkpoint, model));
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

bool within_tolerance(const LogitsCheck& check, FolderWeights weights) {
  constexpr double kOtherOrder = 1e-6, kMerged = 1e-5, kRounded = 5e-2;
  const double bound = weights == FolderWeights::kRounded  ? kRounded
                       : weights == FolderWeights::kMerged ? kMerged
                                                           : kOtherOrder;
  return check.equal || check.mean_difference <= bound * check.mean;
}

}  // namespace troupe
