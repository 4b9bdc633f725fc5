#include "troupe/train/choose_layout.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/dist/wire.h"
#include "troupe/nn/models/config.h"
#include "troupe/nn/models/costs.h"
#include "troupe/plan/machine.h"
#include "troupe/train/forecast.h"
#include "troupe/train/layout_forecast.h"
#include "troupe/train/model_memory.h"
#include "troupe/train/step_line.h"

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

std::string amount(double bytes) {
  return bytes < 1e9 ? fixed(1e-6 * bytes, 1) + " MB" : fixed(1e-9 * bytes, 1) + " GB";
}

// What a rank sends in a step for the routed experts of all layers, over so many ranks of a host.
struct ExpertBytes {
  double rows = 0;   // to experts and back, forward and backward: waited for
  double saved = 0;  // of gradients summed in f32 and of values gathered (and muon's directions),
                     // which experts that are elsewhere do not need
};

ExpertBytes expert_bytes(const Recipe& r, const RanksAtHand& ranks, int64_t expert) {
  const double width = value_width(r, ranks.on_gpu), n = static_cast<double>(expert);
  const auto world = static_cast<double>(ranks.world);
  const double tokens = static_cast<double>(plan_of(r).batch * r.data.sequence) / world;
  const ModelCosts costs = costs_of(r.model);
  ExpertBytes out;
  for (int64_t layer = 0; layer < r.model.layers; ++layer) {
    const LayerConfig config = layer_config(r.model, layer);
    if (!config.moe) continue;
    const MoeSizes s = sizes_of(*config.moe, {.width = r.model.width});
    const int64_t D = s.latent > 0 ? s.latent : s.width;
    const auto row = [&](WireType wire) {
      return static_cast<double>(wire_row_bytes(wire, D, static_cast<int64_t>(width)));
    };
    out.rows += 2 * tokens * expected_holders(n, static_cast<double>(s.top_k)) * (1 - 1 / n) *
                (row(r.parallel.wire) + row(WireType::kNative));
    const auto elements =
        static_cast<double>(costs.units[static_cast<size_t>(layer) + 1].params.experts);
    const double all = (world - 1) / world, own = (world / n - 1) / (world / n) / n;
    out.saved += elements * (4 + width + direction_width(r)) * (all - own);
  }
  return out;
}

// The choice with its reasons: those of `out`, what memory asked for, and how rows go.
LayoutChoice told(LayoutChoice out, const ParallelConfig& asked, int64_t wanted, double bytes,
                  const RanksAtHand& ranks, const LayoutNeeds& needs) {
  ParallelConfig& c = out.parallel;
  if (c.expert != wanted) {
    out.why += "but over " + std::to_string(c.expert) + " they fit; ";
  }
  if (c.shard == ShardKind::kFull && asked.shard == ShardKind::kAuto) {
    out.why += "all state is shared: with the optimizer's alone it would not fit; ";
  }
  const std::string rows = why_dispatcher(c, needs);
  if (!rows.empty()) out.why += rows + "; ";
  out.why += "memory forecast " + of_gib(bytes, ranks.memory);
  return out;
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

LayoutChoice choose_layout(const Recipe& r, const RanksAtHand& ranks) {
  const LayoutNeeds needs = needs_of(r, ranks.world, ranks.per_host);
  // The ways that are open, the first that fits is taken.
  LayoutChoice out{.parallel = r.parallel, .why = {}};
  std::vector<int64_t> experts = {r.parallel.expert};
  if (r.parallel.expert == 0) {
    const int64_t near = std::gcd(ranks.world, std::max<int64_t>(ranks.per_host, 1));
    const int64_t over = needs.experts > 0 ? std::gcd(near, needs.experts) : 1;
    experts = {over};
    if (over > 1) {
      const ExpertBytes bytes = expert_bytes(r, ranks, over);
      const bool spread = 2 * bytes.rows <= bytes.saved;
      experts = spread ? std::vector<int64_t>{over, 1} : std::vector<int64_t>{1, over};
      out.why = std::string(spread ? "experts lie over " : "experts do not lie over ") +
                std::to_string(over) + " ranks: their rows are " + amount(bytes.rows) +
                " a step and rank, their gradients and values " + amount(bytes.saved) + " less; ";
    }
  }
  const bool open = r.parallel.shard == ShardKind::kAuto;
  double least = 0;
  for (const bool full : {false, true}) {
    for (const int64_t expert : experts) {
      ParallelConfig c = r.parallel;
      c.expert = expert;
      if (!layout_faults(c, needs).empty()) {  // whoever asks for it tells them
        out.parallel = c;
        return out;
      }
      c = resolved(c, needs);
      if (full) {
        if (!open || c.shard != ShardKind::kZero1) continue;
        c.shard = ShardKind::kFull;
      }
      const double bytes = memory_with(r, c, ranks);
      const bool fits = ranks.memory <= 0 || bytes <= 0.9 * ranks.memory;
      if (least == 0 || fits || bytes < least) out.parallel = c, least = bytes;
      if (fits) return told(std::move(out), r.parallel, experts.front(), bytes, ranks, needs);
    }
  }
  return told(std::move(out), r.parallel, experts.front(), least, ranks, needs);
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
