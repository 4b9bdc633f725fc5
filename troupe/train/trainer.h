// A run from its recipe to its end: opens the data, resumes, trains, evaluates, saves, logs. The
// same call goes on after any stop.
//
//   RUN/recipe.yaml given.yaml env.json   what was asked for, and where it runs
//   RUN/log.txt log.jsonl tb/             what happened
//   RUN/step-000120/ latest               checkpoints
//   RUN/report.html exit.json             at the end
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troupe/checkpoint/checkpoint.h"
#include "troupe/core/file/log.h"
#include "troupe/data/batch_reader.h"
#include "troupe/train/learner.h"
#include "troupe/train/observe/append_file.h"
#include "troupe/train/observe/live_steps.h"
#include "troupe/train/observe/metrics.h"
#include "troupe/train/observe/profile.h"
#include "troupe/train/observe/stragglers.h"
#include "troupe/train/observe/tensorboard.h"
#include "troupe/train/open_data.h"
#include "troupe/train/signals.h"

namespace troupe {

// What a run is given beside its recipe.
struct RunTools {
  Log log;
  Fs& fs;
  const Faults& faults;
  Signals& signals;
  bool force = false;                // goes on although data, model or seed changed
  std::string continue_with;         // the command that goes on: "troupe train run.yaml"
  std::function<void()> begun = {};  // called once the run folder is locked
  std::shared_ptr<Ranks> ranks = std::make_shared<Ranks>();
  LiveSteps steps = {};
};

enum class RunEnd { kFinished, kAlreadyFinished, kStopped };

class Trainer {
 public:
  Trainer(const Recipe& recipe, const RunTools& tools);
  ~Trainer();

  RunEnd run();
  const TrainState& state() const { return state_; }
  Learner& learner() { return *learner_; }
  Doing doing() const { return pulse_.now(); }  // for a message about what failed
  std::string newest_checkpoint() const;

 private:
  using Clock = std::chrono::steady_clock;

  void resume_run();
  void require_schedule(const std::string& folder) const;
  void say_start() const;
  void foresee_save();
  void warn_of_slow_save(double seconds);
  Feed next_feed();
  struct Wait {
    double all = 0, own = 0;  // s for a batch; without what other ranks took
  };
  void one_step(const Feed& feed, Clock::time_point begin, Wait wait);
  // What is to be done after a step, the same on all ranks: rank 0's clock decides, and a signal to
  // any of them.
  struct Due {
    bool line = false, record = false, eval = false, replicas = false, save = false;
    bool status = false;
    bool failed = false;  // a save, on some rank
    std::string why;      // of the save
  };
  Due due_after_step();
  void after_step(const StepReport& report, const Feed& feed, double seconds, double wait);
  void note_rerun(int64_t lost_rows);
  void note_moves(const std::vector<ExpertsMoved>& moved);
  void require_progress(const StepReport& report, const Feed& feed);
  void write_record(const StepReport& report, const Feed& feed, double seconds, bool line_due);
  bool line_due(const Position& before);
  std::vector<OwnSeconds> own_seconds_of_ranks();  // since the last call; empty: one rank
  void judge_stragglers(const std::vector<OwnSeconds>& ranks);
  bool stop_asked() const;  // on any rank; each asks
  std::string why_stop() const;
  void evaluate_all();
  void sample_all();
  double evaluate_set(const std::string& name, const Dataset& set);
  void check_replicas();
  void save(const std::string& why, WhenBusy when_busy);
  void note_saves();
  bool out_of_time() const;
  RunEnd stop(const std::string& why);
  RunEnd finish();
  std::string train_on() const;
  void event(Record record);
  double seconds_since_start() const;

  Trainer(const std::pair<Recipe, std::string>& settled, const RunTools& tools);

  const Recipe recipe_;  // its microbatch settled
  const std::string micro_why_;
  RunTools tools_;
  const RunPlan plan_;
  Ranks& ranks_;
  Pulse& pulse_;
  const bool first_;  // rank 0: the one that writes
  std::string stop_;  // why the run is to stop; empty: it goes on
  Clock::time_point start_ = Clock::now();
  std::unique_ptr<Tokenizer> tokenizer_;
  Data data_;
  std::unique_ptr<Learner> learner_;
  TrainState state_;
  Position before_;         // the last step
  Position experts_asked_;  // the last line
  std::unique_ptr<Saver> saver_;
  CheckpointState tensors_;
  Fingerprint fingerprint_;
  std::string run_id_;
  std::unique_ptr<BatchReader> reader_;
  std::unique_ptr<AppendFile> jsonl_;
  std::unique_ptr<TensorBoard> board_;
  std::unique_ptr<Profile> profile_;
  MoeHealth health_;
  std::string verdict_;
  Interval interval_;
  Stragglers stragglers_;
  std::vector<Cadence> cadences_;
  int64_t resumed_step_ = -1;
  int64_t read_bytes_ = 0;  // of tensors, by all ranks, to go on
  int64_t saved_step_ = -1, scored_step_ = -1;
  std::optional<double> score_ = {};  // validation loss at scored_step_
  double last_line_ = -1, last_step_seconds_ = 0;
  bool warned_of_save_ = false, told_of_rerun_ = false, warned_of_masked_ = false;
  std::string newest_;
  double flops_per_token_ = 0, full_flops_per_token_ = 0;
  std::optional<double> peak_ = {};
};

}  // namespace troupe
