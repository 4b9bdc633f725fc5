// The model that a run learns from (train.teacher): whole on each rank that has the output head, in
// the run's precision. It computes as in an evaluation, without gradients, noise or counts, talks to
// no other rank, and no checkpoint holds it.
#pragma once

#include <memory>

#include "troupe/nn/model/model.h"
#include "troupe/ops/soft_targets.h"
#include "troupe/train/recipe/teacher.h"

namespace troupe {

class Teacher {
 public:
  // `model`: with all units, on the device of the run.
  Teacher(std::unique_ptr<Model> model, const TeacherConfig& config);

  // Of a microbatch of whole rows: hidden states are computed now, logits when they are asked for,
  // for which the teacher must live on.
  std::shared_ptr<const SoftTargets> words_of(const Batch& batch) const;

 private:
  std::unique_ptr<Model> model_;
  TeacherConfig config_;
};

}  // namespace troupe
