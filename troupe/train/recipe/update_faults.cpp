#include "troupe/train/recipe/update_faults.h"

#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

struct NotInBackward {
  bool is_set;
  const char* why;
};

std::vector<NotInBackward> not_in_backward(const Recipe& r) {
  const TrainConfig& t = r.train;
  return {
      {t.clip > 0 && t.clip_by == ClipBy::kThisStep,
       "updates layers before the norm of all gradients is known, by which train.clip clips; set "
       "train.clip to 0, or train.clip_by to last_step, which clips by the norm of the step "
       "before"},
      {r.parallel.pipeline > 1,
       "does not go with parallel.pipeline, whose ranks have other layers to judge; set it to 1 "
       "and parallel.shard to full or zero1"},
      {t.precision == Precision::kFp16,
       "does not go with train.precision fp16, whose steps overflow now and then and are left "
       "out whole; take bf16"},
      {t.precision == Precision::kFp64,
       "does not go with train.precision fp64, whose norms may be beyond those that it judges by; "
       "take fp32"},
      {t.spike.skip,
       "does not go with train.spike.skip, which judges a step before any weight changes; set it "
       "to false"},
      {r.model.moe.experts > 0 && r.model.moe.capacity.budget > 0,
       "does not go with model.moe.capacity.budget, which repeats a step that had too many rows; "
       "set it to 0"}};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> update_faults(const Recipe& r) {
  std::vector<std::pair<std::string, std::string>> out;
  if (r.train.clip_by == ClipBy::kLastStep && r.train.clip == 0) {
    out.emplace_back("train.clip_by", "last_step clips nothing: train.clip is 0. Leave it out");
  }
  if (r.train.update != UpdatePlace::kInBackward) return out;
  for (const NotInBackward& x : not_in_backward(r)) {
    if (x.is_set) out.emplace_back("train.update", std::string("in_backward ") + x.why);
  }
  return out;
}

}  // namespace troupe
