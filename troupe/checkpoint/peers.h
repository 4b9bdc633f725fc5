// The ranks that save and load together. Two functions are all that is asked of a network.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace troupe {

// Bytes for each rank, and from each: the first to[0] of `out` go to rank 0, and so on; in `in` lie
// from[r] bytes of each rank r, in rank order.
struct ByteSwap {
  std::span<const std::byte> out;
  const std::vector<int64_t>& to;
  std::span<std::byte> in;
  const std::vector<int64_t>& from;
};

struct Peers {
  int rank = 0;
  int world = 1;
  // Each rank gives a text and gets all of them in rank order. Used from one thread at a time,
  // which may be a background thread: it must not meet the collectives of a training step. Throws
  // where a rank is lost. Absent in a world of one.
  std::function<std::vector<std::string>(const std::string& mine)> all_gather = {};
  // What load() sends, on the caller's thread, no step running: all ranks swap at the same time.
  std::function<void(const ByteSwap& bytes)> swap_bytes = {};

  std::vector<std::string> gather(const std::string& mine) const {
    return world == 1 ? std::vector{mine} : all_gather(mine);
  }
  void swap(const ByteSwap& bytes) const {
    if (world > 1) return swap_bytes(bytes);
    std::ranges::copy(bytes.out, bytes.in.begin());
  }
};

// Runs `f`, which returns a text, on every rank and gives all the texts to all. If it throws an
// Error on one rank, it is thrown on all, with the code of the first and a line a rank.
std::vector<std::string> together(const Peers& peers, const std::function<std::string()>& f);

}  // namespace troupe
