// Opens the model that a run trained.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/train/step/learner.h"

namespace troupe {

struct TrainedModel {
  ResolvedRun recipe;  // of one process
  std::string folder;  // of the checkpoint
  int64_t step = 0;
  std::unique_ptr<Faults> faults;  // none; the learner holds a reference
  std::unique_ptr<Learner> learner;
};

// `path` is a run's folder (its newest complete step is loaded), or one step, RUN/step-001200. The
// recipe is RUN/recipe.yaml with each of `sets` applied. Throws E2007 without a recipe, E4002
// without a checkpoint.
// Its tokenizer is the one that the run's folder holds (kept_tokenizer.h), unless `sets` names one.
TrainedModel open_trained_model(const std::string& path, const std::vector<std::string>& sets);

// The step that checkpoint.init_from names: a run's folder (its newest complete step) or one step, as
// above. E4002 where there is none; the error for a model hub's folder asks to import it first.
ResumePoint init_point(const std::string& init_from);

// Loads a checkpoint's weights into a learner and resets its optimizer; saved optimizer state is
// ignored. Throws E4005 for a tensor that is missing or left over.
Loaded load_weights(Learner& learner, const std::string& folder, LoadOptions options,
                    const Faults& faults, const CheckpointGroup& group = {});

}  // namespace troupe
