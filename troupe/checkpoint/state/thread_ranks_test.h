// Ranks that are threads of this process, for tests of what ranks save and load together.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "troupe/checkpoint/state/checkpoint_group.h"

namespace troupe::testing {

class ThreadRanks {
 public:
  explicit ThreadRanks(int world)
      : world_(world), texts_(static_cast<size_t>(world)), bytes_(texts_.size()), barrier_(world) {}

  void run(const std::function<void(const CheckpointGroup&)>& f) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < world_; ++rank) {
      threads.emplace_back([this, rank, &f] { f(group(rank)); });
    }
  }

 private:
  CheckpointGroup group(int rank) {
    return {.rank = rank,
            .size = world_,
            .gather_texts =
                [this, rank](const std::string& mine) {
                  texts_[static_cast<size_t>(rank)] = mine;
                  barrier_.arrive_and_wait();
                  std::vector<std::string> all = texts_;
                  barrier_.arrive_and_wait();
                  return all;
                },
            .exchange_bytes = [this, rank](const AllToAllBytes& swap) { exchange(rank, swap); }};
  }

  void exchange(int rank, const AllToAllBytes& swap) {
    const auto mine = static_cast<size_t>(rank);
    bytes_[mine] = &swap;
    barrier_.arrive_and_wait();
    auto in = swap.in.begin();
    for (size_t r = 0; r < bytes_.size(); ++r) {
      const AllToAllBytes& other = *bytes_[r];
      size_t from = 0;
      for (size_t before = 0; before < mine; ++before) {
        from += static_cast<size_t>(other.to[before]);
      }
      const auto part = other.out.subspan(from, static_cast<size_t>(other.to[mine]));
      in = std::ranges::copy(part, in).out;
    }
    barrier_.arrive_and_wait();
  }

  const int world_;
  std::vector<std::string> texts_;
  std::vector<const AllToAllBytes*> bytes_;
  std::barrier<> barrier_;
};

}  // namespace troupe::testing
