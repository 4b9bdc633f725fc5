// The CPU path: counts of each chunk of slots, prefix sums over (expert, chunk), then each chunk
// puts its slots in place. Ids are read twice; nothing is sorted.
#include <algorithm>
#include <vector>

#include "troupe/kernels/routing_plan/geometry.h"
#include "troupe/kernels/routing_plan/routing_plan.h"

namespace troupe {
namespace {

constexpr int64_t kSlotsPerChunk = 8192;
constexpr int64_t kMaxCounters = int64_t{1} << 20;  // 4 MB: stays in cache with many experts.

class Planner {
 public:
  explicit Planner(const RoutingPlan& a)
      : a_(a), s_(a.shape), slots_(s_.tokens * s_.choices), experts_(s_.experts) {
    const int64_t wanted = ceil_div(slots_, kSlotsPerChunk);
    const int64_t most = std::clamp<int64_t>(kMaxCounters / experts_, 1, 64);
    chunks_ = std::clamp<int64_t>(wanted, 1, most);
    per_chunk_ = ceil_div(slots_, chunks_);
    next_.assign(chunks_ * experts_, 0);
    first_tile_.resize(experts_ + 1);
  }

  int64_t num_chunks() const { return chunks_; }

  void count(int64_t chunk) {
    int32_t* counts = &next_[chunk * experts_];
    const int32_t* ids = a_.ids;
    const auto experts = static_cast<uint32_t>(experts_);
    for (int64_t s = begin(chunk); s < end(chunk); ++s) {
      if (static_cast<uint32_t>(ids[s]) < experts) ++counts[ids[s]];  // -1 is above all ids.
    }
  }

  // Turns counts into the first rank within the expert of each chunk, and lays out the segments.
  void lay_out() {
    int64_t overflow = 0, row = 0, tile = 0;
    for (int64_t e = 0; e < experts_; ++e) {
      int32_t total = 0;
      for (int64_t c = 0; c < chunks_; ++c) {
        const int32_t here = next_[c * experts_ + e];
        next_[c * experts_ + e] = total;
        total += here;
      }
      a_.counts[e] = plan::placed(s_, total);
      overflow += total - a_.counts[e];
      a_.expert_offset[e] = static_cast<int32_t>(row);
      first_tile_[e] = tile;
      const int64_t length = plan::segment_length(s_, a_.counts[e]);
      row += length;
      tile += plan::segment_tiles(s_, length);
    }
    a_.expert_offset[experts_] = static_cast<int32_t>(row);
    first_tile_[experts_] = tile;
    if (s_.tile_height > 0) *a_.tile_count = static_cast<int32_t>(tile);
    if (a_.overflow != nullptr) *a_.overflow = overflow;
    std::fill(a_.row_slot + row, a_.row_slot + row_bound(s_), -1);
    std::fill(a_.row_src + row, a_.row_src + row_bound(s_), -1);
  }

  void place(int64_t chunk) {
    int32_t* next = &next_[chunk * experts_];
    int64_t token = begin(chunk) / s_.choices, k = begin(chunk) % s_.choices;
    for (int64_t s = begin(chunk); s < end(chunk); ++s) {
      const int32_t e = a_.ids[s];
      int32_t row = -1;
      if (0 <= e && e < experts_ && next[e] < a_.counts[e]) {
        row = a_.expert_offset[e] + next[e]++;
        a_.row_slot[row] = static_cast<int32_t>(s);
        a_.row_src[row] = static_cast<int32_t>(token);
      }
      a_.slot_row[s] = row;
      if (++k == s_.choices) ++token, k = 0;
    }
  }

  void finish(int64_t e) {
    const int64_t begin = a_.expert_offset[e], end = a_.expert_offset[e + 1];
    std::fill(a_.row_slot + begin + a_.counts[e], a_.row_slot + end, -1);
    std::fill(a_.row_src + begin + a_.counts[e], a_.row_src + end, -1);
    for (int64_t tile = first_tile_[e]; tile < first_tile_[e + 1]; ++tile) {
      a_.tile_list[2 * tile] = static_cast<int32_t>(e);
      a_.tile_list[2 * tile + 1] =
          static_cast<int32_t>(begin + (tile - first_tile_[e]) * s_.tile_height);
    }
  }

 private:
  int64_t begin(int64_t chunk) const { return std::min(chunk * per_chunk_, slots_); }
  int64_t end(int64_t chunk) const { return begin(chunk + 1); }

  const RoutingPlan& a_;
  const PlanShape& s_;
  int64_t slots_, experts_, chunks_, per_chunk_;
  std::vector<int32_t> next_;  // [chunks, E]
  std::vector<int64_t> first_tile_;
};

}  // namespace

void routing_plan_cpu(const RoutingPlan& a, const Pool& pool) {
  validate(a);
  Planner planner(a);
  const auto for_each = [&](int64_t n, int64_t grain, void (Planner::*step)(int64_t)) {
    pool(n, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) (planner.*step)(i);
    });
  };
  for_each(planner.num_chunks(), 1, &Planner::count);
  planner.lay_out();
  for_each(planner.num_chunks(), 1, &Planner::place);
  for_each(a.shape.experts, 64, &Planner::finish);
}

}  // namespace troupe
