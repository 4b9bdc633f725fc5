#include "troupe/train/choose_layout.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/nn/models/config.h"
#include "troupe/train/forecast.h"
#include "troupe/train/layout_forecast.h"

namespace troupe {
namespace {

double memory_with(Recipe recipe, const ParallelConfig& parallel, const RanksAtHand& ranks) {
  recipe.parallel = parallel;
  return layout_memory(recipe, ranks.world, ranks.on_gpu).total();
}

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

}  // namespace

LayoutNeeds needs_of(const Recipe& r, int64_t world, int64_t per_host) {
  return {.world = world,
          .experts = num_moe_layers(r.model) > 0 ? r.model.moe.experts : 0,
          .whole_matrices = needs_whole_matrices(r.train.optimizer),
          .whole_state = needs_whole_state(r.train.optimizer),
          .per_host = per_host};
}

ParallelConfig settled(const ParallelConfig& config, const LayoutNeeds& needs) {
  std::string all;
  for (const std::string& fault : layout_faults(config, needs)) {
    all.append(all.empty() ? "" : "\n").append(fault);
  }
  if (!all.empty()) throw Error(all, Code::kBadValue);
  return resolved(config, needs);
}

LayoutChoice choose_layout(const Recipe& r, const RanksAtHand& ranks) {
  LayoutChoice out{.parallel = r.parallel, .why = {}};
  ParallelConfig& c = out.parallel;
  const LayoutNeeds needs = needs_of(r, ranks.world, ranks.per_host);
  if (c.expert == 0) {
    const int64_t near = std::gcd(ranks.world, std::max<int64_t>(ranks.per_host, 1));
    c.expert = needs.experts > 0 ? std::gcd(near, needs.experts) : 1;
  }
  if (!layout_faults(c, needs).empty()) return out;  // whoever asks for it tells them
  const bool open = c.shard == ShardKind::kAuto;
  c = resolved(c, needs);
  double bytes = memory_with(r, c, ranks);
  if (open && c.shard == ShardKind::kZero1 && ranks.memory > 0 && bytes > 0.9 * ranks.memory) {
    ParallelConfig full = c;
    full.shard = ShardKind::kFull;
    const double less = memory_with(r, full, ranks);
    if (less < bytes) {
      out.why = "all state is shared: with the optimizer's alone it would be " +
                of_gib(bytes, ranks.memory) + "; ";
      c = full;
      bytes = less;
    }
  }
  const std::string rows = why_dispatcher(c, needs);
  if (!rows.empty()) out.why += rows + "; ";
  out.why += "memory forecast " + of_gib(bytes, ranks.memory);
  return out;
}

MicroBatchChoice choose_micro_batch(const Recipe& r, const RanksAtHand& ranks) {
  if (r.train.micro_batch) return {.sequences = *r.train.micro_batch, .why = "given"};
  const int64_t batch = plan_of(r).batch, tokens = ranks.on_gpu ? 2 * kMicroTokens : kMicroTokens;
  std::vector<int64_t> fit = micro_batches(r, tokens);
  fit = those(fit, [&](int64_t n) { return batch / n >= ranks.world; });
  fit = those(fit, [&](int64_t n) { return batch / n % ranks.world == 0; });
  MicroBatchChoice out{.sequences = fit.front(),
                       .why = "chosen: at most " + std::to_string(tokens) + " tokens"};
  if (ranks.world > 1) out.why += ", each of " + std::to_string(ranks.world) + " ranks its part";
  if (ranks.memory <= 0) return out;
  const auto needs = [&](int64_t n) {
    Recipe with = r;
    with.train.micro_batch = n;
    return needed_memory(with, ranks.on_gpu, ranks.world);
  };
  const auto found = std::find_if(fit.begin(), fit.end(),
                                  [&](int64_t n) { return needs(n) <= 0.9 * ranks.memory; });
  if (found == fit.begin()) return out;
  const double full = needs(out.sequences);
  out.sequences = found == fit.end() ? fit.back() : *found;
  out.why += "; " + std::to_string(fit.front()) + " would need " + of_gib(full, ranks.memory);
  return out;
}

}  // namespace troupe
