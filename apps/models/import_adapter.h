// An adapter of PEFT as step 0 of a run: factors alone, beside a base of ours.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"

namespace troupe {

struct AdapterImport {
  std::string checkpoint, base;  // RUN/step-000000, and the step that has the other weights
  int64_t rank = 0;
  double alpha = 0;
  std::vector<std::string> targets = {};
  int64_t tensors = 0;  // of theirs
  int64_t factors = 0;  // of ours
  int64_t added = 0;    // matrices of the targets that theirs leaves out
};

// `base`: a run of ours, or one of its steps, without adapters. RUN also gets a recipe.yaml with
// the model, model.lora in it, and the base in checkpoint.init_from, as a run that trained there
// has it. E4005 where the base has adapters, or theirs do not fit it.
AdapterImport import_adapter(const std::string& folder, const std::string& base,
                             const std::string& run, const Log& log, Fs& fs);

}  // namespace troupe
