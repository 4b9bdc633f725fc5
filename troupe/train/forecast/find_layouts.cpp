#include "troupe/train/forecast/find_layouts.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "troupe/train/forecast/forecaster.h"

namespace troupe {
namespace {

// The ways of sharing state that the recipe leaves open.
std::vector<ShardKind> kinds_of(const ParallelConfig& given, const LayoutNeeds& needs) {
  if (given.shard != ShardKind::kAuto) return {given.shard};
  if (needs.whole_state) return {ShardKind::kNone};
  if (given.shard_ranks > 0) return {ShardKind::kZero1, ShardKind::kFull};
  return {ShardKind::kNone, ShardKind::kZero1, ShardKind::kFull};
}

// Copies the pipeline's keys. Resolving the map of stages anew for each way to share state would
// take most of the search's time.
void with_stages_of(ParallelConfig& out, const ParallelConfig& from) {
  out.pipeline = from.pipeline;
  out.stages = from.stages;
  out.virtual_stages = from.virtual_stages;
  out.schedule = from.schedule;
}

// Every layout with the tensor, context, pipeline and expert_tensor ranks and the stages of
// `given`: all possible values of `expert`, `shard`, `shard_ranks` and `reshard` that it leaves
// open. `slices`: also with more expert ranks than experts.
std::vector<ParallelConfig> choices_of(const ParallelConfig& given, const LayoutNeeds& whole,
                                       bool slices) {
  ParallelConfig stage = given;
  with_stages_of(stage, {});
  stage.pipeline = 1;
  LayoutNeeds needs = whole;
  needs.world /= given.pipeline;
  std::vector<ParallelConfig> out;
  const auto add = [&](int64_t expert, ShardKind kind, int64_t block) {
    ParallelConfig c = stage;
    c.expert = expert;
    c.shard = kind;
    c.shard_ranks = block;
    if (!layout_faults(c, needs).empty()) return;
    out.push_back(resolved(c, needs));
    with_stages_of(out.back(), given);
    if (given.pipeline == 1 || kind != ShardKind::kFull || !given.reshard) return;
    out.push_back(out.back());  // gathered once a step, not for each microbatch
    out.back().reshard = false;
  };
  const int64_t host = needs.per_host / given.tensor;  // with the same dense parameters
  const int64_t most = slices ? needs.world : std::max<int64_t>({1, needs.experts, given.expert});
  for (int64_t expert = 1; expert <= std::min(needs.world, most); ++expert) {
    if (needs.world % (expert * given.expert_tensor) != 0 ||
        (given.expert != 0 && expert != given.expert))
      continue;
    for (const ShardKind kind : kinds_of(given, needs)) {
      add(expert, kind, given.shard_ranks);
      const bool open = given.shard == ShardKind::kAuto && given.shard_ranks == 0;
      const bool hosts = 1 < host && needs.per_host < needs.world;
      if (open && hosts && kind != ShardKind::kNone) add(expert, kind, host);
    }
  }
  return out;
}

// The divisors of n from 2 to `most`.
std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> out;
  for (int64_t d = 2; d <= std::min(n, most); ++d) {
    if (n % d == 0) out.push_back(d);
  }
  return out;
}

// Layouts with equal tensor, context and pipeline ranks and an equal microbatch: one forecaster.
struct Base {
  Recipe recipe = {};
  LayoutNeeds needs = {};
  std::unique_ptr<Forecaster> forecaster = nullptr;
};

struct Candidate {
  size_t base = 0;
  ParallelConfig parallel = {};
  QuickForecast quick = {};
};

// One with a pipeline, as it was simulated.
struct Staged {
  bool too_large;
  double seconds;
  Candidate candidate;
};

class Search {
 public:
  Search(const Recipe& recipe, const RanksAtHand& ranks, const Machine& machine)
      : given_(recipe),
        ranks_(ranks),
        machine_(machine),
        memory_(ranks.memory > 0 ? ranks.memory : std::numeric_limits<double>::infinity()) {
    machine_.ranks_per_host = std::max<int64_t>(ranks.per_host, 1);
  }

  LayoutSearch run(OpenAxes axes) {
    const ParallelConfig& p = given_.parallel;
    for (const Candidate& c : candidates(add_bases(p), /*slices=*/true)) simulate(c);
    const bool open = p.tensor == 0 || p.context == 0 || p.pipeline == 0 || p.expert_tensor == 0;
    const bool hosts = ranks_.on_gpu && ranks_.world > ranks_.per_host;
    if (open &&
        (axes == OpenAxes::kAll || (axes == OpenAxes::kMayFit && (out_.fit.empty() || hosts)))) {
      search_axes();
    }
    std::ranges::stable_sort(out_.fit, {}, [](const LayoutForecast& f) {
      return std::pair(f.step_seconds, f.rank.peak.total());
    });
    return std::move(out_);
  }

 private:
  // A base for each microbatch that is open. None if the axes do not fit.
  std::vector<size_t> add_bases(const ParallelConfig& axes) {
    Recipe recipe = given_;
    recipe.parallel = with_closed_axes(axes);
    ParallelConfig& p = recipe.parallel;
    const int64_t sharers = p.tensor * p.context * p.pipeline;
    if (ranks_.world % sharers != 0) return {};
    const LayoutNeeds needs = needs_of(recipe, ranks_.world, machine_.ranks_per_host);
    if (!pipeline_faults(p, needs.layers, needs.mtp).empty()) return {};
    with_stages_of(p, resolved(p, needs));
    if (p.overlap == Overlap::kExperts && p.pipeline > 1 && !runs_beside(p.schedule)) return {};
    std::vector<size_t> out;
    for (const int64_t sequences : open_micro_batches(recipe, ranks_.world, ranks_.on_gpu)) {
      out.push_back(bases_.size());
      bases_.push_back({recipe, needs});
      bases_.back().recipe.train.micro_batch = sequences;
    }
    return out;
  }

  std::vector<Candidate> candidates(const std::vector<size_t>& bases, bool slices) {
    std::vector<Candidate> out;
    if (bases.empty()) return out;
    const Base& first = bases_[bases.front()];  // they differ in microbatches alone
    const std::vector<ParallelConfig> choices =
        choices_of(first.recipe.parallel, first.needs, slices);
    for (const size_t base : bases) {
      for (const ParallelConfig& parallel : choices) out.push_back({base, parallel});
    }
    return out;
  }

  const Forecaster& forecaster_of(const Candidate& c) {
    Base& base = bases_[c.base];
    if (!base.forecaster) {
      Recipe laid = base.recipe;
      const ParallelConfig stages = laid.parallel;
      laid.parallel = c.parallel;
      with_stages_of(laid.parallel, stages);
      // What the model's memory depends on: how matrices and sequences are cut, and the microbatch.
      const auto key = std::tuple(c.parallel.tensor, c.parallel.context, laid.train.micro_batch);
      const Forecaster*& like = counted_[key];
      base.forecaster = std::make_unique<Forecaster>(std::move(laid), ranks_.world, machine_,
                                                     ranks_.on_gpu, kCostedMicrobatches, like);
      if (like == nullptr) like = base.forecaster.get();
    }
    return *base.forecaster;
  }

  void simulate(const Candidate& c) {
    LayoutForecast f = forecaster_of(c)(c.parallel);
    ++out_.simulated;
    f.schedule.clear();
    f.rank.slots.clear();
    const double seconds = f.step_seconds, bytes = f.rank.peak.total();
    if (!out_.least || bytes < out_.least->rank.peak.total()) out_.least = f;
    const bool fits = bytes <= memory_;
    if (c.parallel.pipeline > 1 && bytes <= kQuickMemory * memory_) {
      staged_.push_back({!fits, seconds, c});
    }
    if (!fits) return;
    out_.fit.push_back(std::move(f));
  }

  // Every setting of the open axes but that of run(), with one stage a rank.
  std::vector<ParallelConfig> open_axes(bool slices) const {
    const ParallelConfig& p = given_.parallel;
    const auto values = [](int64_t given, std::vector<int64_t> more) {
      if (given != 0) return std::vector{given};
      more.insert(more.begin(), 1);
      return more;
    };
    const bool rows = given_.data.sequence >= kLongRow || out_.fit.empty();
    const bool whole = given_.log.routing > 0;  // a rank routes whole microbatches then
    const int64_t host = std::max<int64_t>(ranks_.per_host, 1);
    const std::vector<int64_t> none;
    const int64_t units = given_.model.layers + given_.model.mtp.depth + 2;
    std::vector<ParallelConfig> out;
    for (const int64_t tensor : values(p.tensor, whole ? none : divisors(host, host))) {
      for (const int64_t context :
           values(p.context, rows && !whole ? divisors(ranks_.world, 4 * host) : none)) {
        for (const int64_t pipeline : values(p.pipeline, divisors(ranks_.world, units))) {
          for (const int64_t cut : values(p.expert_tensor, slices ? divisors(host, host) : none)) {
            ParallelConfig c = p;
            c.tensor = tensor;
            c.context = context;
            c.pipeline = pipeline;
            c.expert_tensor = cut;
            if (ranks_.world % (tensor * context * pipeline) == 0) out.push_back(c);
          }
        }
      }
    }
    return out;
  }

  // The fastest that may fit, until enough of them do, and those with the least memory.
  void simulate_best_of(std::vector<Candidate> all) {
    const auto fits = [&](const Candidate& c) { return c.quick.memory <= kQuickMemory * memory_; };
    std::ranges::stable_sort(
        all, {}, [&](const Candidate& c) { return std::pair(!fits(c), c.quick.seconds); });
    const size_t before = out_.fit.size();
    size_t done = 0;
    while (done < std::min(all.size(), kMostTimed) && fits(all[done]) &&
           (done < kTimed || out_.fit.size() < before + kVaried)) {
      simulate(all[done++]);
    }
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(done));
    std::ranges::stable_sort(all, {}, [](const Candidate& c) { return c.quick.memory; });
    all.resize(std::min(all.size(), kSmall));
    for (const Candidate& c : all) simulate(c);
  }

  void search_axes() {
    simulate_axes(/*slices=*/false);
    if (out_.fit.empty() && given_.parallel.expert_tensor == 0) simulate_axes(/*slices=*/true);
    // Another order holds fewer graphs: of those that do not fit some may.
    std::vector<Staged> staged = staged_;
    std::ranges::stable_sort(staged, {},
                             [](const Staged& s) { return std::pair(s.too_large, s.seconds); });
    staged.resize(std::min(staged.size(), kVaried));
    for (const Staged& s : staged) vary(s.candidate);
  }

  void simulate_axes(bool slices) {
    const ParallelConfig one = with_closed_axes(given_.parallel);
    std::vector<Candidate> all;
    for (const ParallelConfig& axes : open_axes(slices)) {
      const bool least = axes.tensor == one.tensor && axes.context == one.context &&
                         axes.pipeline == one.pipeline && axes.expert_tensor == one.expert_tensor;
      if (least) continue;  // simulated already
      for (Candidate& c : candidates(add_bases(axes), slices)) {
        c.quick = forecaster_of(c).quick(c.parallel);
        ++out_.quick;
        all.push_back(std::move(c));
      }
    }
    simulate_best_of(std::move(all));
  }

  // Other orders, and more stages a rank.
  void vary(const Candidate& c) {
    const ParallelConfig& given = given_.parallel;
    if (!given.stages.empty()) return;
    const int64_t of_rank = given_.model.layers / c.parallel.pipeline;
    std::vector<std::pair<PipelineOrder, int64_t>> ways = {{PipelineOrder::kZb1p, 1},
                                                           {PipelineOrder::kZbv, 2}};
    for (const int64_t v : {int64_t{2}, of_rank / 2, of_rank}) {
      const std::pair way{PipelineOrder::kInterleaved, v};
      if (v > 1 && std::ranges::find(ways, way) == ways.end()) ways.push_back(way);
    }
    for (const auto& [order, v] : ways) {
      if (given.schedule != PipelineOrder::kAuto && given.schedule != order) continue;
      if (given.virtual_stages != 0 && given.virtual_stages != v) continue;
      ParallelConfig axes = given;
      axes.tensor = c.parallel.tensor;
      axes.context = c.parallel.context;
      axes.pipeline = c.parallel.pipeline;
      axes.expert_tensor = c.parallel.expert_tensor;
      axes.schedule = order;
      axes.virtual_stages = v;
      for (const size_t base : add_bases(axes)) {
        const Recipe& recipe = bases_[base].recipe;
        if (recipe.train.micro_batch != bases_[c.base].recipe.train.micro_batch) continue;
        Candidate varied{base, c.parallel};
        with_stages_of(varied.parallel, recipe.parallel);
        const bool same = varied.parallel.schedule == c.parallel.schedule &&
                          varied.parallel.stages == c.parallel.stages;
        if (!same) simulate(varied);
      }
    }
  }

  const Recipe& given_;
  const RanksAtHand ranks_;
  Machine machine_;
  double memory_;
  std::vector<Base> bases_;
  std::map<std::tuple<int64_t, int64_t, std::optional<int64_t>>, const Forecaster*> counted_;
  std::vector<Staged> staged_;  // those that fit, or nearly
  LayoutSearch out_;
};

}  // namespace

LayoutSearch find_layouts(const Recipe& recipe, const RanksAtHand& ranks, const Machine& machine,
                          OpenAxes axes) {
  return Search(recipe, ranks, machine).run(axes);
}

}  // namespace troupe
