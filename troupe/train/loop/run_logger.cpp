#include "troupe/train/loop/run_logger.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/text/readable.h"
#include "troupe/core/unix_seconds.h"
#include "troupe/train/forecast/mfu.h"
#include "troupe/train/loop/startup_lines.h"
#include "troupe/train/observe/memory_use.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/params/rebalance.h"
#include "troupe/train/report/report.h"

namespace troupe {
namespace {

// Seconds of all ranks, by rank. A collective of the tensors' group, as the sum of the experts'
// loads before it: NCCL sums over trees, where the hosts' group goes round a ring of all ranks.
// Ranks share no clock: each reports its own work.
std::vector<OwnSeconds> all_gathered(const ParallelState& parallel, const OwnSeconds& mine) {
  const auto ranks = parallel.size(), phases = static_cast<int64_t>(mine.size());
  const at::Tensor own = at::zeros({ranks, phases}, at::kDouble);
  std::copy(mine.begin(), mine.end(), own.mutable_data_ptr<double>() + parallel.rank() * phases);
  const at::Tensor all =
      parallel.sum_over_all()(own.to(parallel.world().device())).to(at::kCPU).contiguous();
  std::vector<OwnSeconds> of(static_cast<size_t>(ranks));
  const double* value = all.const_data_ptr<double>();
  for (OwnSeconds& seconds : of) {
    for (double& x : seconds) x = *value++;
  }
  return of;
}

std::string straggler_line(const Straggler& slow) {
  return "rank " + std::to_string(slow.rank) + " works " + fixed(slow.factor, 1) +
         " times as long as the others, which wait for it: most in " + std::string(slow.phase) +
         ", " + fixed(slow.seconds * 1e3, 1) + " ms a step where their median is " +
         fixed(slow.median * 1e3, 1) + " ms";
}

LogRecord straggler_record(const Straggler& slow) {
  LogRecord r;
  r.add("event", std::string_view("straggler"));
  r.add("rank", slow.rank);
  r.add("factor", slow.factor);
  r.add("phase", slow.phase);
  r.add("phase_s", slow.seconds);
  r.add("median_s", slow.median);
  return r;
}

}  // namespace

RunLogger::RunLogger(const RunContext& run, Learner& learner)
    : run_(run),
      learner_(learner),
      health_(run.recipe.log.health),
      experts_(expert_interval(run.recipe.log, run.recipe.plan.run)),
      peak_(device_peak(learner.device())) {
  const ModelCosts costs = learner.model().costs();
  flops_per_token_ = costs.flops_per_token(run.recipe.data.sequence);
  full_flops_per_token_ = costs.flops_per_token(run.recipe.data.sequence, /*full=*/true);
}

void RunLogger::open(int64_t resumed_step) {
  experts_asked_ = run_.state.done;
  if (!run_.writes_logs()) return;
  const std::string& dir = run_.recipe.checkpoint.dir;
  jsonl_ = std::make_unique<AppendFile>(dir + "/log.jsonl", run_.log(), AppendFile::Holds::kLines);
  if (run_.recipe.log.tensorboard) {
    tensorboard_ = std::make_unique<TensorBoard>(dir + "/tb", resumed_step, run_.log());
  }
}

void RunLogger::start(int64_t resumed_step, int64_t read_bytes, int64_t index_bytes) {
  LogRecord started;
  started.add("event", std::string_view(resumed_step >= 0 ? "resume" : "start"));
  started.add("samples", run_.state.done.samples);
  started.add("params", learner_.model().costs().params());
  started.add("active_params", learner_.model().costs().active_params());
  if (resumed_step >= 0) {
    started.add("read_bytes", read_bytes);
    started.add("index_bytes", index_bytes);
  }
  event(std::move(started));
}

void RunLogger::add_step(const StepReport& report, double seconds, double wait, double own_wait) {
  stragglers_.add(report.seconds, own_wait);
  interval_.add(report, seconds, wait);
}

void RunLogger::note_step(const StepReport& report, const Feed& feed) {
  if (feed.weight_sum <= 0 && !std::exchange(warned_of_masked_, true) && run_.writes_logs()) {
    run_.log().warning(masked_line(run_.state.done.steps));
  }
  if (!report.graph.empty()) run_.log().info(run_.step() + ": " + report.graph);
  if (report.offloaded) {
    run_.log().info(run_.step() + ": " + offloaded_line(*report.offloaded));
  }
  if (!report.spike.empty()) {
    run_.log().warning(run_.step() + ": " + report.spike + (report.skipped ? "; skipped" : ""));
    LogRecord record;
    record.add("event", std::string_view("spike"));
    record.add("what", report.spike);
    event(std::move(record));
  }
  if (!report.finite) note_nonfinite(report, feed);
  note_moves(report.moved);
  note_rerun(report.lost_rows);
}

void RunLogger::note_nonfinite(const StepReport& report, const Feed& feed) {
  const std::string step = run_.step();
  const std::string where = report.first_bad.empty() ? "" : " First: " + report.first_bad + ".";
  const std::string changed =
      report.units_updated > 0
          ? ", found behind the update of " + std::to_string(report.units_updated) +
                " units (train.update: in_backward), which stay updated; the others are unchanged."
          : ", found before the update; weights are unchanged.";
  const std::string what = "non-finite " +
                           std::string(std::isfinite(report.loss) ? "gradient" : "loss") + changed +
                           where;
  LogRecord record;
  record.add("event", std::string_view("nonfinite"));
  record.add("first", report.first_bad);
  if (report.units_updated > 0) record.add("units_updated", report.units_updated);
  record.add("first_sample", feed.first_sample);
  record.add("samples", feed.samples);
  event(std::move(record));
  const bool overflow = learner_.precision() == Precision::kFp16;
  const std::string line = step + ": " + to_text(Code::kNonFinite) + ' ' + what;
  if (overflow) {
    return run_.log().info(step + ": fp16 overflow, skipped; loss scale now " +
                           fixed(run_.state.loss_scale.scale, 0));
  }
  if (run_.state.skipped_now > run_.recipe.train.max_skips) {
    fail(Code::kNonFinite, step, what, run_.state.skipped_now, "steps in a row were skipped");
  }
  run_.log().warning(line + " Skipped (" + std::to_string(run_.state.skipped_now) + " of " +
                     std::to_string(run_.recipe.train.max_skips) + ")");
}

void RunLogger::note_moves(const std::vector<ExpertsMoved>& moved) {
  if (moved.empty()) return;
  run_.log().info(moved_line(run_.state.done.steps, run_.recipe.model.moe.experts, moved));
  std::vector<double> layers, experts, before, after;
  for (const ExpertsMoved& m : moved) {
    layers.push_back(static_cast<double>(m.layer));
    experts.push_back(static_cast<double>(m.experts));
    before.push_back(m.before);
    after.push_back(m.after);
  }
  LogRecord r;
  r.add("event", std::string_view("rebalance"));
  r.add("layers", layers);
  r.add("experts_moved", experts);
  r.add("load_before", before);
  r.add("load_after", after);
  event(std::move(r));
}

// C7. Logged once; every record has the number so far.
void RunLogger::note_rerun(int64_t lost_rows) {
  if (lost_rows == 0 || !run_.writes_logs() || std::exchange(warned_of_rerun_, true)) return;
  run_.log().warning(
      "step " + std::to_string(run_.state.done.steps) +
      ": a rank received more rows than its budget (model.moe.capacity.budget " +
      to_text(run_.recipe.model.moe.capacity.budget) +
      "); the step was repeated without the limit, as all such steps will be; log.jsonl "
      "counts them as reruns");
}

// Warned of once; every line's record has the number of its steps.
void RunLogger::add_saturated(LogRecord& r) {
  const std::optional<int64_t> operands = interval_.fp8_saturated();
  if (!operands) return;
  r.add("fp8_saturated", *operands);
  if (*operands == 0 || std::exchange(warned_of_saturated_, true)) return;
  run_.log().warning(
      run_.step() + ": " + to_text(*operands) +
      " operands in 8 bits since the last line had values above what the steps before "
      "had shown, which were cut off (train.fp8.recipe tensor cuts none off); "
      "log.jsonl counts them as fp8_saturated");
}

void RunLogger::judge_stragglers(const std::vector<OwnSeconds>& of) {
  if (of.empty()) return;
  const std::optional<Straggler> before = stragglers_.slow();
  const double wall = interval_.step_seconds() * static_cast<double>(interval_.steps());
  const ProcessMesh& mesh = run_.parallel().mesh();
  const auto stages =
      mesh.shape().pipeline > 1 ? mesh.all(GroupKind::kStage) : std::vector<std::vector<int64_t>>();
  if (!stragglers_.judge(of, interval_.steps(), wall, stages) || !run_.writes_logs()) return;
  if (!stragglers_.slow()) {
    run_.log().info("rank " + std::to_string(before->rank) +
                    " is no longer slower than the others");
    return;
  }
  run_.log().warning(straggler_line(*stragglers_.slow()));
  event(straggler_record(*stragglers_.slow()));
}

LogRecord RunLogger::record_of(const StepReport& report, const Feed& feed, double seconds) const {
  LogRecord r;
  r.add("step", run_.state.done.steps);
  r.add("samples", run_.state.done.samples);
  r.add("tokens", run_.state.done.tokens);
  r.add("time", unix_seconds());
  r.add("loss", report.loss);
  const bool taught = run_.recipe.train.teacher.has_value();
  const bool prefers = run_.recipe.train.loss == LossKind::kDpo;
  if (!prefers) r.add("ppl", std::exp(std::min(20.0, taught ? report.ce : report.loss)));
  r.add("loss_ema", run_.state.loss_ema);
  if (taught) {
    r.add("ce", report.ce);
    r.add("kl", report.kl);
  }
  if (prefers) {  // TRL's names
    r.add("rewards/chosen", report.rewards.chosen);
    r.add("rewards/rejected", report.rewards.rejected);
    r.add("rewards/accuracies", report.rewards.accuracy);
    r.add("rewards/margins", report.rewards.margin());
  }
  if (run_.recipe.model.mtp.depth > 0) r.add("mtp_loss", report.mtp_loss);
  if (forces_routing(run_.recipe.model)) r.add("forced", int64_t{1});
  r.add("grad_norm", report.grad_norm);
  r.add("lr", report.lr);
  r.add("weight_decay", report.weight_decay);
  r.add("batch", feed.samples);
  r.add("skipped", run_.state.skipped);
  r.add("nonfinite", run_.state.nonfinite);
  if (run_.recipe.model.moe.capacity.budget > 0) r.add("reruns", run_.state.reruns);
  if (learner_.precision() == Precision::kFp16) r.add("loss_scale", run_.state.loss_scale.scale);
  r.add("step_s", seconds);
  r.add("tokens_s", static_cast<double>(feed.tokens) / seconds);
  r.add("forward_s", report.seconds.forward);
  r.add("backward_s", report.seconds.backward);
  r.add("update_s", report.seconds.update);
  return r;
}

void RunLogger::add_interval(LogRecord& r) {
  const double flops = flops_per_token_ * interval_.tokens_per_second();
  r.add("tflops", flops * 1e-12);
  if (peak_) {
    const double peak = *peak_ * static_cast<double>(run_.parallel().size());
    r.add("mfu", flops / peak);
    r.add("mfu_full", full_flops_per_token_ * interval_.tokens_per_second() / peak);
  }
  r.add("data_wait", interval_.wait_fraction());
  r.add("rss", resident_bytes());
  const MemoryUse memory = memory_use(learner_.device());
  r.add("memory", memory.allocated);
  r.add("memory_reserved", memory.reserved);
  r.add("memory_peak", memory.peak);
  r.add("memory_total", memory.total);
  r.add("memory_retries", memory.retries);
}

void RunLogger::write_line(const LogRecord& r, const std::vector<LayerLoad>& loads) {
  LogRecord shown = r;  // the line tells the interval's mean, the log each step's own
  shown.set("loss", interval_.loss());
  shown.set("step_s", interval_.step_seconds());
  shown.set("tokens_s", interval_.tokens_per_second());
  if (!run_.tools.steps.show(run_.recipe.log.format, shown, run_.state.done,
                             run_.recipe.plan.run)) {
    run_.log().info(
        step_line(run_.recipe.log.format, shown, run_.state.done, run_.recipe.plan.run));
  }
  if (!loads.empty()) {
    const std::string verdict = health_.add(run_.state.done.steps, interval_.steps(), loads);
    if (!verdict.empty()) run_.log().info(verdict);
    // Asked at lines alone, which have the counts: of all steps since it was asked last.
    if (experts_.due(experts_asked_, run_.state.done, run_.seconds())) {
      event(experts_record(loads));
    }
    experts_asked_ = run_.state.done;
  }
}

void RunLogger::write_record(const StepReport& report, const Feed& feed, double seconds,
                             bool line) {
  if (line) {
    interval_.add_other_ranks(run_.parallel().sum_over_all(), moe_units(run_.recipe.model),
                              learner_.device());
  }
  std::vector<OwnSeconds> own;  // since the last line
  if (line && !run_.parallel().alone()) own = all_gathered(run_.parallel(), stragglers_.take());
  judge_stragglers(own);
  if (!run_.writes_logs()) {
    if (line) interval_.clear();
    return;
  }
  LogRecord r = record_of(report, feed, seconds);
  add_own_seconds(r, own, interval_.steps());
  if (line) {
    add_interval(r);
    const std::vector<LayerLoad> loads = interval_.loads();
    add_moe(r, loads, interval_.aux());
    add_saturated(r);
    write_line(r, loads);
    interval_.clear();
  }
  jsonl_->append(r.json() + "\n");
  if (tensorboard_ != nullptr) tensorboard_->scalars(run_.state.done.steps, r.scalars());
}

void RunLogger::status(const std::string& newest_checkpoint) const {
  run_.log().info("status: step " + std::to_string(run_.state.done.steps) + ", loss " +
                  fixed(run_.state.loss_ema, 4) + ", newest checkpoint " +
                  (newest_checkpoint.empty() ? "none" : newest_checkpoint));
}

void RunLogger::event(LogRecord record) {
  if (!run_.writes_logs()) return;
  record.add("step", run_.state.done.steps);
  record.add("time", unix_seconds());
  jsonl_->append(record.json() + "\n");
}

void RunLogger::scalar(const std::string& name, double value) {
  if (tensorboard_ != nullptr) tensorboard_->scalars(run_.state.done.steps, {{name, value}});
}

void RunLogger::text(const std::string& name, const std::string& text) {
  if (tensorboard_ != nullptr) tensorboard_->text(run_.state.done.steps, name, text);
}

}  // namespace troupe
