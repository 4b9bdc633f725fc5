// all_to_all of bytes between ranks that are threads of this process, counted: what goes over the
// network of a run, and not through its store.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include "troupe/distributed/parallel_state/all_to_all_bytes.h"

namespace troupe::control_plane {

class RankExchange {
 public:
  explicit RankExchange(int64_t ranks);

  // All ranks call it. E6001 where one does not come within minutes, or sends other sizes than its
  // peer expects.
  void run(int64_t rank, const AllToAllBytes& bytes);

  struct Sent {
    int64_t messages = 0, bytes = 0;  // to other ranks
  };
  Sent take();  // since the last call

 private:
  void meet();

  std::vector<const AllToAllBytes*> offers_;
  std::vector<std::vector<int64_t>> begins_;  // of a rank: where in `out` each other's part begins
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t there_ = 0, round_ = 0;
  Sent sent_;
};

}  // namespace troupe::control_plane
