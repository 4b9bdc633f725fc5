// Resumes a run from its newest checkpoint, or begins one: from weights of another run
// (checkpoint.init_from) or at step 0. resume.h has the checks that need no ranks.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/checkpoint/files/manifest.h"
#include "troupe/train/loop/run_context.h"
#include "troupe/train/loop/save_control.h"
#include "troupe/train/step/learner.h"

namespace troupe {

struct ResumedRun {
  std::string id = {};           // which the checkpoints keep; a run that begins gets a new one
  Fingerprint fingerprint = {};  // of data, model, seed and batch: what must not change on resume
  int64_t step = -1;             // of the checkpoint that it resumes from; below 0: it begins
  int64_t read_bytes = 0;        // of tensors, by all ranks, to resume
  int64_t index_bytes = 0;       // of index files and shards' headers, likewise
};

// Loads the newest checkpoint of the run's folder into `learner` and run.state, and passes its step
// to `saves`. `data`: the fingerprint of the training data. Logs the steps that it passed over and
// what has changed. Throws where ranks differ in the fingerprint, where the checkpoint is another
// run's (unless waived), and where checkpoints are lost (unless forced). Each rank calls.
ResumedRun resume_run(const RunContext& run, Fingerprint data, Learner& learner,
                      SaveControl& saves);

}  // namespace troupe
