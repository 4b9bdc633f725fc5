// Ranks that are threads of one process, between processors' tensors: what a collective over a
// network does, without sockets. A group of threads is tested as one of processes would be, in
// milliseconds.
//
//   auto shared = thread_ranks();                      // one for all ranks
//   c10::intrusive_ptr<c10d::Backend> b = thread_backend(shared, {.key = "tensor", ...});
//
// A call returns at once; what it gives is there after its wait(). The thread that comes last does
// the work of all: sums in rank order, in the tensors' own type, so twice the same call has the
// same bits. Stricter than Gloo: the calls of all ranks are compared before data moves (operation,
// number, sizes, types), and calls that differ fail on every rank, with both ranks and both calls;
// so are the two ends of a message, the n-th that one rank sends another with the n-th received.
// A rank that does not come within the timeout fails the others, with its last call; so does
// abandon(), which a rank calls that ends by itself.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

class ThreadRanks;
std::shared_ptr<ThreadRanks> thread_ranks();

// Every wait that is under way, and each that begins from now on, throws with this reason.
void abandon(ThreadRanks& ranks, const std::string& why);

struct ThreadGroup {
  std::string key;             // the same of all members, and of no other group
  std::vector<int64_t> ranks;  // of the world, for messages
  int index = 0;               // of this one
  std::chrono::milliseconds timeout{60'000};
};
c10::intrusive_ptr<c10d::Backend> thread_backend(const std::shared_ptr<ThreadRanks>& shared,
                                                 const ThreadGroup& group);

}  // namespace troupe
