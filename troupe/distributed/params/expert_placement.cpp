#include "troupe/distributed/params/expert_placement.h"

#include <algorithm>
#include <cmath>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// The divisor of n nearest to `wanted`; of two, the smaller.
int64_t nearest_divisor(int64_t n, int64_t wanted) {
  int64_t best = 1;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0 && std::abs(d - wanted) < std::abs(best - wanted)) best = d;
  }
  return best;
}

}  // namespace

std::vector<int64_t> ExpertPlacement::held_by(int64_t rank) const {
  std::vector<int64_t> out;
  for (int64_t e = 0; e < experts(); ++e) {
    if (std::find(owners_[e].begin(), owners_[e].end(), rank) != owners_[e].end()) out.push_back(e);
  }
  return out;
}

ExpertPlacement contiguous(int64_t experts, int64_t ranks) {
  TROUPE_CHECK(experts >= 1 && ranks >= 1, "experts", experts, "ranks", ranks);
  if (experts % ranks != 0) {
    fail(Code::kBadValue, "parallel.expert", experts, "experts do not divide over", ranks,
         "ranks; the nearest legal expert parallelism is", nearest_divisor(experts, ranks),
         ", or place them unevenly (parallel.placement: uneven)");
  }
  return in_runs(experts, ranks);
}

ExpertPlacement in_runs(int64_t experts, int64_t ranks) {
  TROUPE_CHECK(ranks >= 1 && experts >= ranks, "experts", experts, "ranks", ranks);
  ExpertPlacement p;
  p.ranks_ = ranks;
  for (int64_t e = 0; e < experts; ++e) {
    p.owners_.push_back({static_cast<int32_t>(e * ranks / experts)});
  }
  return p;
}

ExpertPlacement hidden_sharded(int64_t experts, int64_t ranks, int64_t hidden) {
  TROUPE_CHECK(experts >= 1 && ranks >= 1, "experts", experts, "ranks", ranks);
  const int64_t blocks = std::min(experts, ranks), slices = ranks / blocks;
  if (experts % blocks != 0 || ranks % blocks != 0) {
    fail(Code::kBadValue, "parallel.expert", experts, "experts cannot be cut over", ranks,
         "ranks: one must divide the other");
  }
  if (hidden % slices != 0) {
    fail(Code::kBadValue, "parallel.expert", "an expert's width", hidden, "does not divide into",
         slices, "slices (", ranks, "ranks,", experts, "experts)");
  }
  ExpertPlacement p;
  p.ranks_ = ranks;
  p.slices_ = slices;
  for (int64_t r = 0; r < ranks; ++r) p.slice_of_.push_back(r / blocks);
  p.owners_.resize(experts);
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t s = 0; s < slices; ++s) {
      p.owners_[e].push_back(static_cast<int32_t>(s * blocks + e / (experts / blocks)));
    }
  }
  return p;
}

ExpertPlacement sliced(int64_t experts, int64_t ranks, int64_t slices, int64_t hidden) {
  TROUPE_CHECK(slices >= 1, "slices", slices);
  if (hidden % slices != 0) {
    fail(Code::kBadValue, "parallel.expert_tensor", "an expert's width", hidden,
         "does not divide into", slices, "slices; the nearest that does is",
         nearest_divisor(hidden, slices));
  }
  ExpertPlacement p = contiguous(experts, ranks);
  if (slices == 1) return p;
  p.ranks_ = ranks * slices;
  p.slices_ = slices;
  for (int64_t r = 0; r < p.ranks_; ++r) p.slice_of_.push_back(r % slices);
  for (std::vector<int32_t>& owners : p.owners_) {
    const auto first = static_cast<int32_t>(owners[0] * slices);
    owners.clear();
    for (int32_t s = 0; s < slices; ++s) owners.push_back(first + s);
  }
  return p;
}

ExpertPlacement listed(int64_t ranks, std::vector<std::vector<int32_t>> owners) {
  TROUPE_CHECK(ranks >= 1, "ranks", ranks);
  for (size_t e = 0; e < owners.size(); ++e) {
    std::sort(owners[e].begin(), owners[e].end());
    const bool twice = std::adjacent_find(owners[e].begin(), owners[e].end()) != owners[e].end();
    const bool inside = !owners[e].empty() && owners[e].front() >= 0 && owners[e].back() < ranks;
    if (twice || !inside) {
      fail(Code::kBadValue, "parallel.placement[" + std::to_string(e) + "]", "expert", e,
           "needs at least one owner, each once and in [ 0 ,", ranks, ")");
    }
  }
  ExpertPlacement p;
  p.ranks_ = ranks;
  p.owners_ = std::move(owners);
  return p;
}

}  // namespace troupe
