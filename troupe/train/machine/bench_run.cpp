#include "troupe/train/machine/bench_run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "troupe/core/config/config.h"
#include "troupe/core/number/rng.h"
#include "troupe/core/text/median.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/loop/startup_lines.h"
#include "troupe/train/observe/memory_use.h"
#include "troupe/train/observe/metrics.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/observe/version.h"
#include "troupe/train/run/open_teacher.h"
#include "troupe/train/step/learner.h"

namespace troupe {
namespace {

// `sequences` rows of uniformly random tokens.
TokenBatch made_up(const ResolvedRun& r, int64_t sequences) {
  TokenBatch out{.B = sequences, .S = r.data.sequence};
  const Rng rng(r.train.seed, stream_of("bench"));
  const auto rows = static_cast<size_t>(out.B), columns = static_cast<size_t>(out.S);
  for (size_t i = 0; i < rows * (columns + 1); ++i) {
    out.ids.push_back(static_cast<int32_t>(rng.uniform(i) * static_cast<double>(r.model.vocab)));
  }
  for (size_t i = 0; i < rows * columns; ++i) {
    out.positions.push_back(static_cast<int32_t>(i % columns));
  }
  out.documents.resize(rows * columns, 0);
  out.weights.resize(rows * columns, 1.0F);
  out.sources.resize(rows, 0);
  return out;
}

double busiest(const Interval& interval) {
  const std::vector<LayerLoad> loads = interval.loads();
  double sum = 0;
  for (const LayerLoad& load : loads) sum += load.max_over_mean();
  return loads.empty() ? 0 : sum / static_cast<double>(loads.size());
}

// One of several ranks, without the others.
std::shared_ptr<World> played(const c10::Device& device, const BenchOptions& options) {
  constexpr int64_t kHost = 8;
  return std::make_shared<World>(LauncherEnvironment{.rank = options.rank,
                                                     .size = options.ranks,
                                                     .local_rank = options.rank % kHost,
                                                     .local_size = std::min(options.ranks, kHost),
                                                     .source = "played by one process"},
                                 device, WorldOptions{.played = true});
}

// This rank's part of a batch of all, whose tokens all count.
Feed own_feed(const ResolvedRun& run, const c10::Device& device, const ParallelSetup& setup) {
  const int64_t micro = run.plan.micro_batch, microbatches = run.plan.batch / micro;
  const RankShare share = share_of(setup.state, microbatches);
  Feed feed =
      make_feed(made_up(run, share.count * micro), micro, device, share.steps, row_cut(run, setup));
  feed.loss_tokens = run.plan.batch * run.data.sequence;
  feed.weight_sum = static_cast<double>(feed.loss_tokens);
  feed.all_microbatches = microbatches;
  return feed;
}

double tensor_bytes(const ResolvedRun& r, bool on_gpu, const ParallelState& parallel) {
  const auto tensors = [&](const auto& m) { return m.total() - (on_gpu ? m.runtime : 0); };
  if (parallel.alone()) return tensors(forecast_memory(r, on_gpu));
  return tensors(layout_memory(r, parallel.size(), on_gpu, parallel.stage_rank()));
}

BenchTimes time_steps(const ResolvedRun& r, const c10::Device& device,
                      const std::shared_ptr<const ParallelSetup>& setup,
                      const BenchOptions& options) {
  const Faults none;
  Learner learner(r, device, none, setup);
  if (r.train.teacher && learner.has_head()) open_teacher(r, teacher_folder(r), learner);
  const Feed feed = own_feed(r, device, *setup);
  TrainState state;
  state.loss_scale = start_of(r.train.loss_scale);
  std::vector<double> step, forward, backward, update;
  Interval interval;
  for (int64_t n = 0; n < options.warmup + options.steps; ++n) {
    const auto begin = std::chrono::steady_clock::now();
    const StepReport report = learner.step(feed, state);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (n < options.warmup) continue;
    interval.add(report, seconds, 0);
    step.push_back(seconds);
    forward.push_back(report.seconds.forward);
    backward.push_back(report.seconds.backward);
    update.push_back(report.seconds.update);
  }
  BenchTimes out{.routing = "learned",
                 .step_s = median(step),
                 .forward_s = median(forward),
                 .backward_s = median(backward),
                 .update_s = median(update)};
  out.tokens_s = static_cast<double>(feed.tokens) / out.step_s;
  const double flops = learner.model().costs().flops_per_token(r.data.sequence) * out.tokens_s;
  out.tflops = flops * 1e-12;
  out.max_over_mean = busiest(interval);
  out.peak_bytes = memory_use(device).peak;
  return out;
}

}  // namespace

BenchReport bench_run(const Recipe& recipe, const BenchOptions& options) {
  if (options.steps < 1 || options.warmup < 0) {
    fail(Code::kBadValue, "bench", "needs a step to time; --steps is", options.steps,
         "and --warmup", options.warmup);
  }
  if (recipe.run.threads > 0) at::set_num_threads(static_cast<int>(recipe.run.threads));
  const c10::Device device = device_of(recipe.run.device);
  const std::shared_ptr<World> world = options.ranks == 1 ? nullptr : played(device, options);
  const ResolvedRun r = world ? resolve(recipe, *world) : resolve_alone(recipe);
  const RunEnvironment here = this_environment({}, device.str());
  const ModelCosts costs = costs_of(r.model);
  BenchReport out{.version = version(),
                  .commit = commit(),
                  .device = device.str(),
                  .processor = here.processor,
                  .precision = to_text(r.train.precision),
                  .threads = here.threads,
                  .params = costs.params(),
                  .active_params = costs.active_params(),
                  .batch = r.plan.batch,
                  .micro_batch = r.plan.micro_batch,
                  .sequence = r.data.sequence,
                  .warmup = options.warmup,
                  .steps = options.steps,
                  .ranks = options.ranks,
                  .rank = options.rank};
  const auto setup =
      world ? std::make_shared<ParallelSetup>(world, r) : std::make_shared<ParallelSetup>();
  ResolvedRun even = r;
  const bool forced = forces_routing(r.model);  // by the recipe: nothing learned is there to time
  const RouterConfig& router = r.model.moe.router;
  if (!forced && num_moe_layers(r.model) > 0 && gate_of(router) != nullptr && !is_even(router)) {
    // Forced routing comes first: learned loads may be larger, and the peak of memory never falls.
    read_config(override_yaml("model.moe.router.force=uniform"), static_cast<Recipe&>(even));
    out.times.push_back(time_steps(even, device, setup, options));
    out.times.back().routing = "forced";
  }
  out.times.insert(out.times.begin(), time_steps(r, device, setup, options));
  if (forced) out.times.front().routing = "forced";
  out.peak_bytes = out.times.back().peak_bytes;
  out.forecast_bytes = static_cast<int64_t>(tensor_bytes(even, device.is_cuda(), setup->state));
  return out;
}

}  // namespace troupe
