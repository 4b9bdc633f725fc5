// A group of ranks and its collectives: c10d's process group, Gloo on the CPU and NCCL on GPUs, or
// there too Gloo, through host memory (staged_backend.h).
//
// Every rank of a group makes the same calls in the same order, also with empty tensors; a rank
// that is in several groups orders its calls over all of them as the others do. A call is
// asynchronous: results are valid after wait(), on a GPU for later work on this stream. Do not
// touch the tensors before. A group of one sends nothing.
//
// Tensors are contiguous, on the group's device, of one type in a call. The order of a sum depends
// on the group only: the same call gives the same bits each time, and on all ranks.
//
// A failure throws E6001 with the collective, the group and this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troupe/distributed/status/flight_recorder.h"
#include "troupe/distributed/status/pulse.h"

namespace troupe {

class ShardedBackwards;
class SymmetricHeap;

// Who is in a group. Thousands of ranks are a text of kilobytes, which messages alone ask for.
struct GroupMembers {
  std::vector<int64_t> ranks;  // in the world
  std::string backend;         // empty: a rank alone
  std::string text() const;    // "ranks 0, 2 over gloo"
};

// A collective in flight, which keeps its tensors alive. Several may be in flight at once.
class Pending {
 public:
  Pending() = default;  // complete
  void wait();          // no-op when complete
  bool done() const { return work_ == nullptr; }

 private:
  friend class ProcessGroup;
  struct Work;
  std::shared_ptr<Work> work_;
};

class ProcessGroup {
 public:
  explicit ProcessGroup(int64_t rank = 0);  // this rank alone
  ~ProcessGroup();

  int64_t rank() const { return rank_; }  // index of this rank in ranks()
  int64_t size() const { return static_cast<int64_t>(ranks().size()); }
  const std::vector<int64_t>& ranks() const { return members_->ranks; }  // their ranks in the world
  std::string description() const { return members_->text(); }           // for messages

  // All-reduce: each rank's x becomes the sum over ranks.
  Pending all_reduce(const std::vector<at::Tensor>& all);
  // Reduce-scatter: rank r gets elements r n .. (r + 1) n of the sum of all in [W n], as out [n].
  Pending reduce_scatter(const std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& ins);
  // All-gather: out [W n] holds every rank's in [n], in rank order. `in` may be its part of `out`.
  Pending all_gather(const std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& ins);
  // All-to-all of rows: the first to_rows[0] of in [.., D] go to rank 0, and so on; out gets
  // from_rows[r] rows of each rank r, in rank order. Counts are on the host; any may be 0.
  Pending all_to_all(const at::Tensor& out, const at::Tensor& in,
                     const std::vector<int64_t>& from_rows, const std::vector<int64_t>& to_rows);
  // Copies x of rank `from` to all ranks.
  Pending broadcast(const at::Tensor& x, int64_t from);
  // To and from the other rank of a group of two; x is not empty. What is sent arrives in the order
  // of the calls, whatever goes the other way.
  Pending send(const at::Tensor& x);
  Pending recv(const at::Tensor& x);

  // For a few values, and for parts of which most are empty, on the host; synchronous. Over Gloo a
  // rank needs few connections for them, where a ring or a mesh of thousands would be slow.
  // The sum, the same bits on all ranks: along a tree whose rank r has children r width + 1 ..
  // r width + width, a rank adds to its own values those of its children, in their order.
  at::Tensor sum_of_few(const at::Tensor& x, int64_t width = 16);
  // all_to_all, by messages between the ranks that have rows for each other.
  void exchange(const at::Tensor& out, const at::Tensor& in, const std::vector<int64_t>& from_rows,
                const std::vector<int64_t>& to_rows);

  at::Tensor all_reduced(const at::Tensor& x);                  // synchronous, a new tensor
  int64_t bytes_to_others() const { return bytes_to_others_; }  // sent by all_to_all() so far
  void barrier();                                               // synchronous

  // Memory of these ranks that each of them reaches with plain loads (symmetric_heap.h). The first
  // call makes it, on every rank of the group alike; it lives as long as the group.
  SymmetricHeap& heap(const c10::Device& device);
  const SymmetricHeap* heap() const { return heap_.get(); }       // null: none was made
  std::chrono::milliseconds timeout() const { return timeout_; }  // of one collective
  Pulse* pulse() const { return pulse_.get(); }                   // null: none is kept
  // Of the modules that are sharded over this group (modules/fully_shard.h): null until one is.
  std::shared_ptr<ShardedBackwards>& sharded_backwards() { return sharded_backwards_; }
  // The record of a collective that goes another way than the backend's.
  Operation count(Collective what, int64_t bytes);

 private:
  friend class World;
  struct Backend;
  ProcessGroup(std::unique_ptr<Backend> backend, std::vector<int64_t> ranks, int64_t rank,
               std::shared_ptr<Pulse> pulse);
  // `start` issues the collective on the backend.
  template <class F>
  Pending issue(Collective what, std::vector<at::Tensor> tensors, F&& start);
  // The same of a call that waits for itself.
  void carry_out(Collective what, int64_t bytes, const std::function<void(Backend&)>& f);
  bool over_gloo() const;
  void check_message(const at::Tensor& x) const;
  void check_rows(const at::Tensor& out, const at::Tensor& in,
                  const std::vector<int64_t>& from_rows, const std::vector<int64_t>& to_rows) const;

  std::unique_ptr<Backend> backend_;
  std::shared_ptr<const GroupMembers> members_;
  int64_t rank_ = 0;
  int64_t issued_ = 0;
  int64_t bytes_to_others_ = 0;
  std::chrono::milliseconds timeout_{600'000};
  std::shared_ptr<Pulse> pulse_;  // records each collective and wait
  std::shared_ptr<SymmetricHeap> heap_;
  std::shared_ptr<ShardedBackwards> sharded_backwards_;
};

}  // namespace troupe
