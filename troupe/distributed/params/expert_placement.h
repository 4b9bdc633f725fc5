// Which ranks hold which expert: a table, not arithmetic (rules H1 and H2).
//
//   contiguous(E, W)        rank r owns experts [r E / W, (r + 1) E / W)
//   in_runs(E, W)           the same for any E >= W, bounds rounded up: ranks differ by one expert
//   hidden_sharded(E, W, F) for W > E: each expert's F columns are cut over W / E ranks
//   sliced(E, ep, etp, F)   rank s + etp b has experts of run b of ep, columns of slice s of etp
//   listed(W, owners)       any other: uneven, ranks without experts, replicas of hot experts
//
// A replica is a whole copy; a token goes to one of them, chosen by its index alone, and the
// replicas' gradients are summed. A slice is a part of F columns; a token goes to all slices, and
// combine adds their partial outputs in rank order.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

class ExpertPlacement {
 public:
  int64_t ranks() const { return ranks_; }
  int64_t experts() const { return static_cast<int64_t>(owners_.size()); }
  int64_t slices() const { return slices_; }  // 1 unless hidden-sharded

  // Ranks with a part of expert e, ascending.
  const std::vector<int32_t>& owners(int64_t e) const { return owners_[e]; }
  // The experts of a rank, ascending: the order of its local experts.
  std::vector<int64_t> held_by(int64_t rank) const;
  // Which of the F columns' slices this rank holds.
  int64_t slice_of(int64_t rank) const { return slices_ == 1 ? 0 : slice_of_[rank]; }

 private:
  friend ExpertPlacement in_runs(int64_t experts, int64_t ranks);
  friend ExpertPlacement hidden_sharded(int64_t experts, int64_t ranks, int64_t hidden);
  friend ExpertPlacement sliced(int64_t experts, int64_t ranks, int64_t slices, int64_t hidden);
  friend ExpertPlacement listed(int64_t ranks, std::vector<std::vector<int32_t>> owners);

  int64_t ranks_ = 1;
  int64_t slices_ = 1;
  std::vector<int64_t> slice_of_;  // of each rank, where there are several
  std::vector<std::vector<int32_t>> owners_;
};

// Each throws where the numbers do not divide, and names both and the nearest that would.
ExpertPlacement contiguous(int64_t experts, int64_t ranks);
ExpertPlacement in_runs(int64_t experts, int64_t ranks);
ExpertPlacement hidden_sharded(int64_t experts, int64_t ranks, int64_t hidden);
ExpertPlacement sliced(int64_t experts, int64_t ranks, int64_t slices, int64_t hidden);
ExpertPlacement listed(int64_t ranks, std::vector<std::vector<int32_t>> owners);

}  // namespace troupe
