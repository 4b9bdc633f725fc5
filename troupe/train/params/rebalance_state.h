// How often experts are rebalanced over ranks (train/params/rebalance.h), and the state that a
// resumed run continues from.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

// Moves experts between ranks to even out their load (rebalance.h).
struct RebalanceConfig {
  int64_t every = 0;   // steps, whose choices are counted; 0: experts stay
  double gain = 0.05;  // by how much max/mean of the ranks' rows must fall
  static void visit(auto& c, auto&& f) {
    f("every", c.every, "Steps between rebalancing; 0: off.");
    f("gain", c.gain, "Minimum decrease of max/mean rows per rank for a move.");
  }
};

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
