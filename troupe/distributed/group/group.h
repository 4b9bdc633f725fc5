// Ranks that exchange tensors: c10d's process group, over Gloo between processors and over NCCL
// between GPUs.
//
// Every rank of a group makes the same calls in the same order, also with empty tensors; a rank
// that is in several groups orders its calls over all of them as the others do. A call enqueues and
// comes back; what it gives is there after wait(), on a GPU for what this stream does next. Until
// then the tensors are left alone. A group of one sends nothing.
//
// Tensors are contiguous, on the group's device, of one type in a call. Sums are taken in an order
// that the group alone decides: twice the same call, twice the same bits, equal on all ranks.
//
// What fails throws E6001 with the operation, the group and this rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troupe/distributed/status/flight.h"
#include "troupe/distributed/status/pulse.h"

namespace troupe {

// What is on its way. Several may be; each holds its tensors.
class Pending {
 public:
  Pending() = default;  // nothing: there already
  void wait();          // a second time it does nothing
  bool done() const { return work_ == nullptr; }

 private:
  friend class RankGroup;
  struct Work;
  std::shared_ptr<Work> work_;
};

class RankGroup {
 public:
  explicit RankGroup(int64_t rank = 0);  // this rank alone
  ~RankGroup();

  int64_t rank() const { return rank_; }  // this one's place in ranks()
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  const std::vector<int64_t>& ranks() const { return ranks_; }  // of the world
  std::string description() const;                              // "ranks 0, 2 over gloo"

  // Each rank's x becomes the sum of all.
  Pending sum(const std::vector<at::Tensor>& all);
  // in [W n] is the sum of all ranks' parts; rank r gets elements r n .. (r + 1) n in out [n].
  Pending sum_shards(const std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& ins);
  // out [W n] is every rank's in [n], in rank order. An `in` may lie in `out`, at its place.
  Pending gather(const std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& ins);
  // Rows in[.., D] go out: the first to_rows[0] to rank 0, and so on; out holds from_rows[r] rows
  // of each rank r, in rank order. Row numbers are the host's; any may be 0.
  Pending exchange(const at::Tensor& out, const at::Tensor& in,
                   const std::vector<int64_t>& from_rows, const std::vector<int64_t>& to_rows);
  // x of rank `from` on all.
  Pending broadcast(const at::Tensor& x, int64_t from);

  at::Tensor summed(const at::Tensor& x);                       // a new tensor, waited for
  int64_t bytes_to_others() const { return bytes_to_others_; }  // that exchange() has sent so far
  void barrier();                                               // until all ranks are here

 private:
  friend class World;
  struct Backend;
  RankGroup(std::unique_ptr<Backend> backend, std::vector<int64_t> ranks, int64_t rank,
            std::shared_ptr<Pulse> pulse);
  // `start` issues the call; null: nothing is to be sent.
  template <class F>
  Pending issue(Together what, std::vector<at::Tensor> tensors, F&& start);

  std::unique_ptr<Backend> backend_;
  std::vector<int64_t> ranks_;
  int64_t rank_ = 0;
  int64_t issued_ = 0;
  int64_t bytes_to_others_ = 0;
  std::shared_ptr<Pulse> pulse_;  // which is told of each operation and wait
};

}  // namespace troupe
