// `train.teacher`: distillation. A model that is there already says for each token how probable every
// word is, and the run learns from that beside its targets (ops/soft_targets.h has the formula). The
// teacher is a run's folder, one of its steps, or a model hub's folder of a family that this program
// knows; it may have other layers, widths and experts than the model, and the same vocabulary.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/core/config/facts.h"

namespace troupe {

struct ModelConfig;
struct Recipe;

struct TeacherConfig {
  std::string path = "";
  double weight = 0.5;
  double temperature = 1;
  int64_t top = 0;

  static void visit(auto& c, auto&& f) {
    f("path", c.path,
      "The teacher: a run's folder (its newest complete step), one step, RUN/step-001200, or a "
      "Hugging Face folder.");
    f("weight", c.weight,
      "Weight of the divergence from the teacher, that of the cross-entropy is 1 - weight; 0: it "
      "is measured alone.");
    f("temperature", c.temperature,
      "Divides the logits of both; the divergence is multiplied by its square.");
    f("top", c.top, "Words of the teacher that count, the most probable ones; 0: all.",
      AtMost{1 << 24}, kNotNegative);
  }
};

// Whether a path names a model hub's folder, not a run or a step.
bool is_hub_folder(const std::string& path);

// The teacher's model, by its config.json or its run's recipe, without its weights. Throws E4002
// where it is not there, and E2005 where it has another vocabulary than the recipe's model, or
// fewer positions than data.sequence.
ModelConfig teacher_model(const Recipe& recipe);

}  // namespace troupe
