// The ranks that save and load together. One function is all that is asked of a network.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace troupe {

struct Peers {
  int rank = 0;
  int world = 1;
  // Each rank gives a text and gets all of them in rank order. Used from one thread at a time,
  // which may be a background thread: it must not meet the collectives of a training step. Throws
  // where a rank is lost. Absent in a world of one.
  std::function<std::vector<std::string>(const std::string& mine)> all_gather = {};

  std::vector<std::string> gather(const std::string& mine) const {
    return world == 1 ? std::vector{mine} : all_gather(mine);
  }
};

// Runs `f`, which returns a text, on every rank and gives all the texts to all. If it throws an
// Error on one rank, it is thrown on all, with the code of the first and a line a rank.
std::vector<std::string> together(const Peers& peers, const std::function<std::string()>& f);

}  // namespace troupe
