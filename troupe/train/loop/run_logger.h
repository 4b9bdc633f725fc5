// What a run writes while it goes: step lines in the log, a record a step in log.jsonl, scalars for
// TensorBoard. Rank 0 writes; what is summed over ranks for it is a collective.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/config/span.h"
#include "troupe/train/loop/run_context.h"
#include "troupe/train/observe/append_file.h"
#include "troupe/train/observe/health.h"
#include "troupe/train/observe/metrics.h"
#include "troupe/train/observe/stragglers.h"
#include "troupe/train/observe/tensorboard.h"
#include "troupe/train/step/feed.h"
#include "troupe/train/step/learner.h"

namespace troupe {

class RunLogger {
 public:
  RunLogger(const RunContext& run, Learner& learner);

  // Opens RUN/log.jsonl and RUN/tb; a run that resumes at a step (below 0: none) appends to them.
  void open(int64_t resumed_step);
  // Bytes of tensors, and of index files and headers, that all ranks read, for a run that resumes.
  void start(int64_t resumed_step, int64_t read_bytes, int64_t index_bytes);

  // One step: `seconds` of it in all, `wait` for its batch, of which `own_wait` without what other
  // ranks took.
  void add_step(const StepReport& report, double seconds, double wait, double own_wait);
  // Warns of what went wrong in the step. Throws E5001 after train.max_skips bad steps in a row.
  void note_step(const StepReport& report, const Feed& feed);
  // The record of the step; with `line` the step line, and what it means over the steps since the
  // last line. Each rank calls.
  void write_record(const StepReport& report, const Feed& feed, double seconds, bool line);
  void status(const std::string& newest_checkpoint) const;

  // A line of log.jsonl with the step and the time.
  void event(LogRecord record);
  void scalar(const std::string& name, double value);
  void text(const std::string& name, const std::string& text);

 private:
  void note_moves(const std::vector<ExpertsMoved>& moved);
  void note_rerun(int64_t lost_rows);
  void add_saturated(LogRecord& record);
  void note_nonfinite(const StepReport& report, const Feed& feed);
  void judge_stragglers(const std::vector<OwnSeconds>& ranks);  // empty: one rank, or no line
  LogRecord record_of(const StepReport& report, const Feed& feed, double seconds) const;
  void add_interval(LogRecord& record);
  void write_line(const LogRecord& record, const std::vector<LayerLoad>& loads);

  const RunContext& run_;
  Learner& learner_;
  std::unique_ptr<AppendFile> jsonl_;
  std::unique_ptr<TensorBoard> tensorboard_;
  MoeHealth health_;
  Interval interval_;
  Stragglers stragglers_;
  Cadence experts_;
  Position experts_asked_;  // the last line
  double flops_per_token_ = 0, full_flops_per_token_ = 0;
  std::optional<double> peak_ = {};
  bool warned_of_rerun_ = false, warned_of_masked_ = false, warned_of_saturated_ = false;
};

}  // namespace troupe
