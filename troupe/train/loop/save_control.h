// The checkpoints of a run: what is in them, when one is written, how long that takes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/train/loop/run_context.h"
#include "troupe/train/loop/run_logger.h"
#include "troupe/train/step/learner.h"

namespace troupe {

class SaveControl {
 public:
  SaveControl(const RunContext& run, Learner& learner, RunLogger& logger);

  // Where the run resumes: a step (below 0: none) that is in `folder`.
  void resumed(int64_t step, const std::string& folder);
  // Saves leave out the frozen weights that `base` has, all but those of the names `own`.
  void leave_out(BaseCheckpoint base, std::set<std::string> own);
  // Locks the run folder.
  void open(const std::string& run_id, const Fingerprint& fingerprint);
  // E7001 or a warning where the disk has no room for the checkpoints that are kept.
  void require_space() const;
  // A save that outlasts the time between SIGTERM and SIGKILL is lost: warns at the start.
  void foresee();

  // Saves the present step, unless it is saved. `score`: its validation loss.
  void save(const std::string& why, WhenBusy when_busy, std::optional<double> score);
  // Logs what has been written since the last call.
  void note_saves();
  // E7005 where the run folder is no longer this run's.
  void keep_folder() { saver_->keep_folder(); }
  bool failed() const { return saver_->failed(); }
  bool busy() const { return saver_->busy(); }  // writes a checkpoint
  void wait() { saver_->wait(); }               // throws where a save failed

  // After experts moved: lists anew which tensors this rank writes.
  void list_tensors();
  int64_t checkpoint_bytes() const { return tensors_.owned_bytes(); }
  const std::string& newest() const { return newest_; }  // folder; empty: none

 private:
  void warn_of_slow_save(double seconds);

  const RunContext& run_;
  Learner& learner_;
  RunLogger& logger_;
  Fingerprint fingerprint_;
  std::optional<BaseCheckpoint> base_;
  std::set<std::string> own_frozen_;
  CheckpointState tensors_;
  std::unique_ptr<Saver> saver_;
  std::string newest_;
  int64_t resumed_step_ = -1, saved_step_ = -1;
  bool warned_ = false;
};

// Compares the weights that ranks have in common and logs how long that took. A collective.
void check_replicas(const RunContext& run, Learner& learner, RunLogger& logger);

}  // namespace troupe
