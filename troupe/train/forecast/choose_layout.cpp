#include "troupe/train/forecast/choose_layout.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/nn/models/config.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/observe/step_line.h"

namespace troupe {
namespace {

std::string of_gib(double bytes, double memory) {
  const std::string needs = in_gib(bytes) + " GiB a rank";
  return memory > 0 ? needs + " of " + in_gib(memory) : needs;
}

// Those of `all` that `good` is true of; if none is, all of them.
std::vector<int64_t> those(const std::vector<int64_t>& all, auto&& good) {
  std::vector<int64_t> out;
  std::copy_if(all.begin(), all.end(), std::back_inserter(out), good);
  return out.empty() ? all : out;
}

bool in_blocks(const LayoutForecast& f) {
  const ParallelConfig& c = f.parallel;
  return c.shard != ShardKind::kNone && c.shard_ranks > 0 && c.shard_ranks < f.world;
}

// Fewer come first.
auto moving_parts(const LayoutForecast& f) {
  const ParallelConfig& c = f.parallel;
  const int kind = c.shard == ShardKind::kZero1 ? 0 : c.shard == ShardKind::kNone ? 1 : 2;
  return std::tuple(kind, in_blocks(f), c.expert, -f.micro_batch);
}

// "zero1 over 8 ranks each, experts over 4, micro batch 2: 436.2 ms"
std::string told(const LayoutForecast& f) {
  const ParallelConfig& c = f.parallel;
  std::string out = to_text(c.shard);
  if (in_blocks(f)) out += " over " + std::to_string(c.shard_ranks) + " ranks each";
  if (c.expert > 1) out += ", experts over " + std::to_string(c.expert);
  return out + ", micro batch " + std::to_string(f.micro_batch) + ": " +
         fixed(1e3 * f.step_seconds, 1) + " ms";
}

// `fit` is not empty, the fastest first.
size_t simplest_of_the_fastest(const std::vector<LayoutForecast>& fit) {
  size_t out = 0;
  for (size_t i = 1; i < fit.size(); ++i) {
    if (fit[i].step_seconds > kAlike * fit.front().step_seconds) break;
    if (moving_parts(fit[i]) < moving_parts(fit[out])) out = i;
  }
  return out;
}

// The choice among those that fit, beside the fastest of the others.
std::string reason(const std::vector<LayoutForecast>& fit, size_t chosen, const Machine& machine) {
  std::string out = told(fit[chosen]) + " a step, forecast for " +
                    (machine.name.empty() ? "the machine" : machine.name);
  if (fit.size() == 1) return out;
  if (chosen == 0) return out + "; next " + told(fit[1]);
  return out + "; as fast with more parts " + told(fit.front());
}

}  // namespace

LayoutNeeds needs_of(const Recipe& r, int64_t world, int64_t per_host) {
  return {.world = world,
          .experts = num_moe_layers(r.model) > 0 ? r.model.moe.experts : 0,
          .whole_matrices = needs_whole_matrices(r.train.optimizer),
          .whole_state = needs_whole_state(r.train.optimizer),
          .per_host = per_host,
          .hidden = r.model.moe.ffn.hidden,
          .whole_experts = r.model.moe.ffn.bias || r.model.moe.ffn.lora.rank > 0};
}

ParallelConfig settled(const ParallelConfig& config, const LayoutNeeds& needs) {
  std::string all;
  for (const std::string& fault : layout_faults(config, needs)) {
    all.append(all.empty() ? "" : "\n").append(fault);
  }
  if (!all.empty()) throw Error(all, Code::kBadValue);
  return resolved(config, needs);
}

Machine machine_of(const Recipe& r, bool on_gpu) {
  if (r.run.machine.empty()) return assumed_machine(on_gpu);
  const Machine assumed = assumed_machine(on_gpu);
  Machine out = load_machine(r.run.machine);
  if (out.inside.bandwidth <= 0) out.inside = assumed.inside;
  if (out.between.bandwidth <= 0) out.between = assumed.between;
  return out;
}

std::vector<int64_t> open_micro_batches(const Recipe& r, int64_t world, bool on_gpu) {
  if (r.train.micro_batch) return {*r.train.micro_batch};
  const int64_t batch = plan_of(r).batch;
  std::vector<int64_t> out = micro_batches(r, on_gpu ? 2 * kMicroTokens : kMicroTokens);
  out = those(out, [&](int64_t n) { return batch / n >= world; });
  return those(out, [&](int64_t n) { return batch / n % world == 0; });
}

LayoutChoice choose_layout(const Recipe& r, const RanksAtHand& ranks, const Machine& machine) {
  Machine costs = machine;
  costs.ranks_per_host = std::max<int64_t>(ranks.per_host, 1);
  const double all = std::numeric_limits<double>::infinity();
  const auto fitting = [&](double memory) {
    return layouts_that_fit(r, ranks.world, costs, ranks.on_gpu, memory);
  };
  std::vector<LayoutForecast> fit = fitting(ranks.memory > 0 ? kMostMemory * ranks.memory : all);
  LayoutChoice out{.parallel = r.parallel, .micro_batch = plan_of(r).micro_batch};
  size_t chosen = 0;
  if (fit.empty()) {
    fit = fitting(all);
    if (fit.empty()) return out;  // whoever asks for it tells what is wrong with it
    const auto least = std::ranges::min_element(
        fit, {}, [](const LayoutForecast& f) { return f.rank.peak.total(); });
    out.why = "nothing fits, this needs least: ";
    fit = {*least};
  } else {
    chosen = simplest_of_the_fastest(fit);
  }
  const LayoutForecast& f = fit[chosen];
  out.parallel = f.parallel;
  out.micro_batch = f.micro_batch;
  out.micro_why = r.train.micro_batch ? "given" : "chosen with the layout";
  out.seconds = f.step_seconds;
  out.why += reason(fit, chosen, machine) + "; ";
  const std::string rows =
      why_dispatcher(f.parallel, needs_of(r, ranks.world, costs.ranks_per_host));
  if (!rows.empty()) out.why += rows + "; ";
  out.why += "memory forecast " + of_gib(f.rank.peak.total(), ranks.memory);
  return out;
}

MicroBatchChoice choose_micro_batch(const Recipe& r, const RanksAtHand& ranks) {
  if (r.train.micro_batch) return {.sequences = *r.train.micro_batch, .why = "given"};
  const int64_t tokens = ranks.on_gpu ? 2 * kMicroTokens : kMicroTokens;
  const std::vector<int64_t> fit = open_micro_batches(r, ranks.world, ranks.on_gpu);
  MicroBatchChoice out{.sequences = fit.front(),
                       .why = "chosen: at most " + std::to_string(tokens) + " tokens"};
  if (ranks.world > 1) out.why += ", each of " + std::to_string(ranks.world) + " ranks its part";
  if (ranks.memory <= 0) return out;
  const auto needs = [&](int64_t n) {
    Recipe with = r;
    with.train.micro_batch = n;
    return needed_memory(with, ranks.on_gpu, ranks.world);
  };
  const auto found = std::find_if(
      fit.begin(), fit.end(), [&](int64_t n) { return needs(n) <= kMostMemory * ranks.memory; });
  if (found == fit.begin()) return out;
  const double full = needs(out.sequences);
  out.sequences = found == fit.end() ? fit.back() : *found;
  out.why += "; " + std::to_string(fit.front()) + " would need " + of_gib(full, ranks.memory);
  return out;
}

}  // namespace troupe
