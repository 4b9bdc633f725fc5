#include "troupe/train/step/teacher.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "troupe/core/check.h"

namespace troupe {

Teacher::Teacher(std::unique_ptr<Model> model, const TeacherConfig& config)
    : model_(std::move(model)), config_(config) {}

std::shared_ptr<const SoftTargets> Teacher::words_of(const Batch& batch) const {
  TROUPE_CHECK(batch.slice == nullptr, "a teacher reads whole rows");
  const at::NoGradGuard no_grad;
  // No replay: those are choices of the student's routers.
  const Batch shown{.ids_BS = batch.ids_BS,
                    .documents_BS = batch.documents_BS,
                    .positions_BS = batch.positions_BS,
                    .valid_BS = batch.valid_BS};
  if (shown.ids_BS.numel() == 0) return std::make_shared<SoftTargets>();  // nothing is asked for
  const at::Tensor h_TD = hidden_states(*model_, shown).flatten(0, 1);
  const auto logits = [model = model_.get(), h_TD](int64_t from, int64_t count) {
    const at::NoGradGuard of_caller;
    return model->logits(h_TD.narrow(0, from, count));
  };
  return std::make_shared<SoftTargets>(SoftTargets{.logits = logits,
                                                   .weight = config_.weight,
                                                   .temperature = config_.temperature,
                                                   .top = config_.top});
}

}  // namespace troupe
