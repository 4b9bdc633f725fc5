// What a run that rebalances its experts (train/params/rebalance.h) goes on with.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

struct RebalanceState {
  int64_t ranks = 0;                 // that share experts; 0: nothing is known
  std::vector<int64_t> owners = {};  // [layers E] the rank, among those, of each expert
  std::vector<int64_t> rows = {};    // [layers E] chosen since experts last could move

  static void visit(auto& s, auto&& f) {
    f("ranks", s.ranks);
    f("owners", s.owners);
    f("rows", s.rows);
  }
};

}  // namespace troupe
