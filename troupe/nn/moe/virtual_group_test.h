// Ranks of a group played by threads of this process, with the collectives that a Context wants.
//
//   run_group(3, [&](VirtualRank& rank) {
//     const Context context{.group_sum = rank.sum(), .group_rows = rank.rows()};
//     ... what rank.index() does with its own tokens ...
//   });
// All ranks must make the same calls in the same order, as over a network. An exception of one ends
// its part; run_group throws it again when all have ended.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include <barrier>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "troupe/nn/parts/context.h"

namespace troupe {

class VirtualRank {
 public:
  // What the ranks of a group share.
  struct Group {
    explicit Group(int64_t ranks)
        : parts(static_cast<size_t>(ranks)), errors(parts.size()), barrier(ranks) {}
    std::vector<at::Tensor> parts;
    std::vector<std::exception_ptr> errors;
    std::barrier<> barrier;
  };

  VirtualRank(Group& group, int64_t index) : group_(group), index_(index) {}

  int64_t index() const { return index_; }

  SumOver sum() {  // in rank order
    return [this](const at::Tensor& own) {
      const std::vector<at::Tensor> all = exchange(own);
      at::Tensor total = all[0];
      for (size_t r = 1; r < all.size(); ++r) total = total + all[r];
      return total;
    };
  }

  RowsOver rows() {
    return [this](const at::Tensor& own) {
      const std::vector<at::Tensor> all = exchange(own);
      int64_t first = 0;
      for (int64_t r = 0; r < index_; ++r) first += all[static_cast<size_t>(r)].size(0);
      return RowsOfGroup{at::cat(all), first};
    };
  }

 private:
  // What every rank gave, in rank order.
  std::vector<at::Tensor> exchange(const at::Tensor& own) {
    group_.parts[static_cast<size_t>(index_)] = own;
    group_.barrier.arrive_and_wait();
    std::vector<at::Tensor> all = group_.parts;
    group_.barrier.arrive_and_wait();  // nobody overwrites what another has yet to read
    return all;
  }

  Group& group_;
  int64_t index_;
};

inline void run_group(int64_t ranks, const std::function<void(VirtualRank&)>& rank_main) {
  VirtualRank::Group group(ranks);
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&group, &rank_main, r] {
      try {
        VirtualRank rank(group, r);
        rank_main(rank);
      } catch (...) {
        group.errors[static_cast<size_t>(r)] = std::current_exception();
      }
      group.barrier.arrive_and_drop();
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::exception_ptr& e : group.errors) {
    if (e) std::rethrow_exception(e);
  }
}

}  // namespace troupe
