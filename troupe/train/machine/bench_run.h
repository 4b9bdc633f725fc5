// How fast a recipe's steps are here: at its shapes, on made-up tokens, without its data.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

struct BenchTimes {
  std::string routing;                                 // "learned", or "forced": no training speed
  double step_s = 0;                                   // medians
  double forward_s = 0, backward_s = 0, update_s = 0;  // the host's; on a GPU those of issuing
  double tokens_s = 0;
  double tflops = 0;         // of the model: recomputation and padding are not in it
  double max_over_mean = 0;  // load of the busiest expert, the mean over layers; 0: no experts
  int64_t peak_bytes = 0;    // of the device's tensors; on the CPU the process's
  static void visit(auto& t, auto&& f) {
    f("routing", t.routing);
    f("step_s", t.step_s);
    f("forward_s", t.forward_s);
    f("backward_s", t.backward_s);
    f("update_s", t.update_s);
    f("tokens_s", t.tokens_s);
    f("tflops", t.tflops);
    f("max_over_mean", t.max_over_mean);
    f("peak_bytes", t.peak_bytes);
  }
};

struct BenchReport {
  std::string version, commit, device, processor, precision;
  int64_t threads = 0;
  int64_t params = 0, active_params = 0;
  int64_t batch = 0, micro_batch = 0, sequence = 0;
  int64_t warmup = 0, steps = 0;
  int64_t ranks = 1, rank = 0;  // of which this was one, played alone
  int64_t peak_bytes = 0;       // with equal loads, where the routing can be forced to them
  int64_t forecast_bytes = 0;   // of the same, what `plan` says
  std::vector<BenchTimes> times = {};
  static void visit(auto& r, auto&& f) {
    f("version", r.version);
    f("commit", r.commit);
    f("device", r.device);
    f("processor", r.processor);
    f("precision", r.precision);
    f("threads", r.threads);
    f("params", r.params);
    f("active_params", r.active_params);
    f("batch", r.batch);
    f("micro_batch", r.micro_batch);
    f("sequence", r.sequence);
    f("warmup", r.warmup);
    f("steps", r.steps);
    f("ranks", r.ranks);
    f("rank", r.rank);
    f("peak_bytes", r.peak_bytes);
    f("forecast_bytes", r.forecast_bytes);
    f("times", r.times);
  }
};

struct BenchOptions {
  int64_t warmup = 2;
  int64_t steps = 5;
  // Runs as one of this many ranks, on hosts of 8, without the others
  // (distributed/group/echo_backend.h): measures what one rank holds and computes, without waits
  // for others.
  int64_t ranks = 1, rank = 0;
};
// Measures learned routing and, if tokens choose the model's experts, forced routing too. If the
// recipe forces its routing (R3), only that is measured, under its name.
BenchReport bench_run(const Recipe& recipe, const BenchOptions& options);

}  // namespace troupe
