#include "troupe/distributed/params/balanced_expert_placement.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {
namespace {

using Sets = std::vector<std::vector<int64_t>>;  // experts of each rank

int64_t owner_of(const ExpertPlacement& p, int64_t expert) {
  TROUPE_CHECK(p.owners(expert).size() == 1, "expert", expert, "has", p.owners(expert).size(),
               "owners");
  return p.owners(expert)[0];
}

std::vector<int64_t> rows_of_ranks(const ExpertPlacement& p, const std::vector<int64_t>& rows_E) {
  TROUPE_CHECK(static_cast<int64_t>(rows_E.size()) == p.experts(), "rows of", rows_E.size(),
               "experts, of", p.experts());
  std::vector<int64_t> out(static_cast<size_t>(p.ranks()));
  for (int64_t e = 0; e < p.experts(); ++e) {
    out[static_cast<size_t>(owner_of(p, e))] += rows_E[static_cast<size_t>(e)];
  }
  return out;
}

Sets longest_first(std::vector<size_t> room, const std::vector<int64_t>& rows_E) {
  std::vector<int64_t> order(rows_E.size());
  std::iota(order.begin(), order.end(), 0);
  const auto rows = [&](int64_t e) { return rows_E[static_cast<size_t>(e)]; };
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return rows(a) > rows(b); });
  Sets sets(room.size());
  std::vector<int64_t> load(room.size());
  for (const int64_t e : order) {
    size_t best = room.size();
    for (size_t r = 0; r < room.size(); ++r) {
      if (room[r] > 0 && (best == room.size() || load[r] < load[best])) best = r;
    }
    sets[best].push_back(e);
    load[best] += rows(e);
    --room[best];
  }
  return sets;
}

}  // namespace

double rank_load(const ExpertPlacement& placement, const std::vector<int64_t>& rows_E) {
  const std::vector<int64_t> rows = rows_of_ranks(placement, rows_E);
  const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  if (all == 0) return 1;
  return static_cast<double>(*std::ranges::max_element(rows)) * static_cast<double>(rows.size()) /
         static_cast<double>(all);
}

ExpertPlacement balanced_expert_placement(const ExpertPlacement& now,
                                          const std::vector<int64_t>& rows_E) {
  const size_t W = rows_of_ranks(now, rows_E).size();  // checks both
  std::vector<size_t> room(W);
  for (size_t r = 0; r < W; ++r) room[r] = now.held_by(static_cast<int64_t>(r)).size();
  const Sets sets = longest_first(room, rows_E);
  std::vector<std::vector<int64_t>> common(W, std::vector<int64_t>(W));  // [set][rank]
  for (size_t s = 0; s < W; ++s) {
    for (const int64_t e : sets[s]) ++common[s][static_cast<size_t>(owner_of(now, e))];
  }
  std::vector<std::tuple<int64_t, size_t, size_t>> pairs;
  for (size_t s = 0; s < W; ++s) {
    for (size_t r = 0; r < W; ++r) {
      if (room[s] == room[r]) pairs.emplace_back(-common[s][r], s, r);
    }
  }
  std::ranges::sort(pairs);
  std::vector<char> placed(W), taken(W);
  std::vector<std::vector<int32_t>> owners(rows_E.size());
  for (const auto& [negated, s, r] : pairs) {
    if (placed[s] != 0 || taken[r] != 0) continue;
    placed[s] = taken[r] = 1;
    for (const int64_t e : sets[s]) owners[static_cast<size_t>(e)] = {static_cast<int32_t>(r)};
  }
  return listed(now.ranks(), std::move(owners));
}

int64_t moved_experts(const ExpertPlacement& from, const ExpertPlacement& to) {
  int64_t moved = 0;
  for (int64_t e = 0; e < from.experts(); ++e) moved += from.owners(e) != to.owners(e);
  return moved;
}

}  // namespace troupe
