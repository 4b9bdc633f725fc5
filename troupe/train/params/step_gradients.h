// The gradients of a step, from a unit's backward to the update.
//
// They are a tensor each, the one that backward made, so the first is neither copied nor widened;
// others are added to it where it is f32 (f64) and nobody else has it. They live from backward to
// the next step: their memory is what forward's activations had, and goes back to it. Where ranks
// add them up they live until reduce(); a bucket that no other rank has, such as experts that are
// spread over all ranks, keeps its own.
//
// Of a bucket that ranks sum, a gradient is a sum of this rank's microbatches, then a share (the
// owned range, summed over its owners), then whole (over all ranks and microbatches). What an update
// reads must be whole: a reduction that is missing, that comes too early or twice is our fault, and
// the error names a parameter of it.
//
// With `exact` (run.bits layout) they are added in no order: as pairs of integers
// (exact_gradients.h), which become f32 in end_step(). None is kept as backward made it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/train/params/buckets.h"

namespace troupe {

class StepGradients {
 public:
  // Buckets and slots must outlive it, and may be filled until the first step. `sum_type`: that
  // gradients are summed in between ranks. `alone`: there are no others.
  StepGradients(std::vector<Bucket>& buckets, const std::vector<ParamSlot>& slots,
                at::ScalarType sum_type, bool alone, bool exact = false);

  // begin_step forgets the last one's; add() holds the first that a parameter gets, whose bits
  // nobody may change from then on, and adds the others, in f32 (f64); end_step() gives zeros to
  // those that got none.
  void begin_step();
  void add(int64_t slot, const at::Tensor& grad);
  // Starts to sum the gradients that the buckets got since the last call; `last`: no more of them
  // come in this step. Waits for the owners' sums of the call before; those over replicas, which
  // begin then, are waited for by end_step(). Nothing where a bucket has no other ranks.
  void reduce(const std::vector<int64_t>& buckets, bool last);
  void end_step();
  // end_step() of some buckets, whose last reductions have begun; and, when they are updated, the
  // end of their gradients, which end_step() leaves out.
  void settle(const std::vector<int64_t>& buckets);
  void release(const std::vector<int64_t>& buckets);
  // As a step of one rank alone that ended with these: whose gradients counted() gave, and something
  // else has made them anew in the same memory.
  void hold(const std::vector<at::Tensor>& gradients);

  // Flat: f32 (f64), or one tensor of backward's type. Of a bucket that ranks sum it must be whole.
  const at::Tensor& of(int64_t slot) const;
  // What this rank counts in the norm: each element of each parameter on one rank alone.
  std::vector<at::Tensor> counted() const;
  // The same of some buckets, each by its place among all: the smaller place comes first there.
  using Place = std::pair<int64_t, int64_t>;
  std::map<Place, at::Tensor> counted_of(const std::vector<int64_t>& buckets) const;
  bool exact() const { return exact_; }
  // With exact(): whether each gradient that this rank added in the step was finite and below
  // kPairLimit. If not, the step's gradients mean nothing.
  bool all_fit() const;

 private:
  enum class State : uint8_t { kLocal, kShare, kWhole };
  struct Reduction {
    int64_t bucket;
    bool last;
    bool all_summed = false;  // also over replicas
    at::Tensor whole = {}, own = {};
    Pending pending = {};
  };
  struct ReplicaSum {  // of what owners have summed
    int64_t bucket;
    at::Tensor sent;
    Pending pending;
  };
  void add_exactly(size_t slot, const at::Tensor& flat);
  void finish_exactly(Bucket& bucket);    // converts its whole sums to f32
  at::Tensor take(const Bucket& bucket);  // [size], in the type of sums; exact: as pairs
  // Elements of a buffer of sums for n of a bucket, and their type between ranks' calls.
  int64_t room_for(int64_t n) const;
  at::ScalarType type_of_sums(const Bucket& bucket) const;
  void finish(Reduction& reduction);
  void finish_all();
  void complete(size_t bucket);
  void check_whole(const Bucket& bucket, State state) const;
  const std::string& name_of(int64_t slot) const;
  Bucket& bucket(int64_t index) { return buckets_[static_cast<size_t>(index)]; }

  std::vector<Bucket>& buckets_;
  const std::vector<ParamSlot>& slots_;
  const at::ScalarType sum_type_;
  const bool alone_, exact_;
  std::vector<char> fits_;         // of each slot, with exact_
  std::vector<at::Tensor> grads_;  // of each slot, or undefined
  std::vector<char> is_sum_;       // of each slot: its gradient is a sum that we made
  std::vector<State> states_;      // of each bucket; kWhole where no ranks sum it
  std::vector<char> closed_;       // of each bucket: its last reduction has begun
  std::vector<char> released_;     // of each bucket
  std::vector<Reduction> reductions_;
  std::vector<ReplicaSum> replica_sums_;  // under way until the step's end
};

}  // namespace troupe
