#include "troupe/schedule/stage_map.h"

#include <algorithm>
#include <limits>

#include "troupe/core/check.h"

namespace troupe {
namespace {

int rank_of(int stage, const PipelineShape& shape) {
  if (shape.path == StagePath::kVee) return std::min(stage, 2 * shape.ranks - 1 - stage);
  return stage % shape.ranks;
}

// Best splits of the first units into so many stages.
class Splits {
 public:
  Splits(const std::vector<UnitLoad>& units, const std::vector<int>& graphs)
      : units_(units.size()), graphs_(graphs), sums_(1) {
    for (const UnitLoad& u : units) {
      const UnitLoad& last = sums_.back();
      sums_.push_back({last.seconds + u.seconds, last.state + u.state, last.saved + u.saved});
    }
  }

  double seconds(size_t from, size_t to) const { return sums_[to].seconds - sums_[from].seconds; }
  double bytes(size_t stage, size_t from, size_t to) const {
    return sums_[to].state - sums_[from].state +
           graphs_[stage] * (sums_[to].saved - sums_[from].saved);
  }

  // The units of each stage where join(before, cost(stage, from, to)) over all stages is least; an
  // infinite cost is no split. `least`: that value.
  template <class Cost, class Join>
  std::vector<int> best(const Cost& cost, const Join& join, double& least) const {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    const size_t stages = graphs_.size();
    std::vector<std::vector<double>> value(stages + 1, std::vector<double>(units_ + 1, kNever));
    std::vector<std::vector<size_t>> begin(stages + 1, std::vector<size_t>(units_ + 1, 0));
    value[0][0] = 0;
    for (size_t s = 0; s < stages; ++s) {
      for (size_t to = s + 1; to + (stages - 1 - s) <= units_; ++to) {
        for (size_t from = s; from < to; ++from) {
          if (value[s][from] == kNever) continue;
          const double v = join(value[s][from], cost(s, from, to));
          if (v >= value[s + 1][to]) continue;
          value[s + 1][to] = v;
          begin[s + 1][to] = from;
        }
      }
    }
    least = value[stages][units_];
    std::vector<int> out(stages);
    for (size_t s = stages, to = units_; s > 0; to = begin[s--][to]) {
      out[s - 1] = static_cast<int>(to - begin[s][to]);
    }
    return out;
  }

 private:
  size_t units_;
  const std::vector<int>& graphs_;
  std::vector<UnitLoad> sums_;  // of the first units
};

}  // namespace

StepWork with_stages(StepWork work, const StageMap& map, const PipelineShape& shape) {
  TROUPE_CHECK(work.chunks == shape.parts(), work.chunks, "chunks of", shape.parts(), "parts");
  work.stages.clear();
  work.stage_ranks.clear();
  for (size_t s = 0; s < map.sizes.size(); ++s) {
    work.stages.insert(work.stages.end(), static_cast<size_t>(map.sizes[s]), static_cast<int>(s));
    work.stage_ranks.push_back(rank_of(static_cast<int>(s), shape));
  }
  TROUPE_CHECK(std::ssize(work.stages) == shape.parts(), work.stages.size(), "parts of",
               shape.parts());
  work.ranks = shape.ranks;
  int over = 0;
  for (size_t c = 1; c < work.stages.size(); ++c) {
    over = std::max(over, work.stages[c] - work.stages[c - 1] - 1);
  }
  work.depth = 2 + over;
  return work;
}

StageMap choose_stages(const std::vector<UnitLoad>& units, const std::vector<int>& graphs,
                       const PipelineShape& shape) {
  if (graphs.size() > units.size()) {
    fail(Code::kBadValue, "parallel.pipeline", graphs.size(), "stages for", shape.layers,
         shape.mtp > 0 ? "layers, embedding, MTP modules and head: at most"
                       : "layers, embedding and head: at most",
         units.size());
  }
  TROUPE_CHECK(std::ssize(units) == shape.parts(), units.size(), "loads of", shape.parts(),
               "parts");
  const Splits splits(units, graphs);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const auto larger = [](double a, double b) { return std::max(a, b); };
  double slowest = 0, fullest = 0, squares = 0;
  splits.best([&](size_t, size_t from, size_t to) { return splits.seconds(from, to); }, larger,
              slowest);
  const auto within = [&](size_t s, size_t from, size_t to) {
    return splits.seconds(from, to) <= slowest ? splits.bytes(s, from, to) : kNever;
  };
  splits.best(within, larger, fullest);
  const auto square = [&](size_t s, size_t from, size_t to) {
    const double seconds = splits.seconds(from, to);
    return within(s, from, to) <= fullest ? seconds * seconds : kNever;
  };
  return {splits.best(
      square, [](double a, double b) { return a + b; }, squares)};
}

}  // namespace troupe
