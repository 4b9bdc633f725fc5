// The ranks that save and load together. Two functions are all that is asked of a network, and no
// tensor: files are tested without PyTorch. checkpoint_group() (group_of_state.h) makes it of a
// ParallelState.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "troupe/distributed/parallel_state/all_to_all_bytes.h"

namespace troupe {

struct CheckpointGroup {
  int rank = 0;
  int size = 1;
  // Each rank gives a text and gets all of them in rank order. Used from one thread at a time,
  // which may be a background thread: it must not meet the collectives of a training step. Throws
  // where a rank is lost. Empty for one rank.
  std::function<std::vector<std::string>(const std::string& mine)> gather_texts = {};
  // What load() sends, on the caller's thread, no step running: all ranks call at the same time.
  std::function<void(const AllToAllBytes& bytes)> exchange_bytes = {};

  std::vector<std::string> all_gather(const std::string& mine) const {
    return size == 1 ? std::vector{mine} : gather_texts(mine);
  }
  void all_to_all(const AllToAllBytes& bytes) const {
    if (size > 1) return exchange_bytes(bytes);
    std::ranges::copy(bytes.out, bytes.in.begin());
  }
};

// Runs `f`, which returns a text, on every rank and gives all the texts to all. If it throws an
// Error on one rank, it is thrown on all, with the code of the first and a line a rank.
std::vector<std::string> run_on_all(const CheckpointGroup& group,
                                    const std::function<std::string()>& f);

// A text from each rank to each: `texts` are those for the ranks, and what comes back those of the
// ranks. All ranks call, as for all_to_all.
std::vector<std::string> exchange_texts(const CheckpointGroup& group,
                                        const std::vector<std::string>& texts);

}  // namespace troupe
