// All parameters of a model in few flat buffers, their gradients of a step, and what of both other
// ranks hold.
//
// Trainable parameters are cut into buckets of equal settings. A bucket has one buffer for the
// values that the model reads (a Param's value is a view of it), one for what these leave of their
// f32 masters, and those of the optimizer. A master is the value itself in f32; a bf16 value and 16
// bits more (core/number/split_f32.h); an f32 number of its own beside f16; an f64 value is its own
// master, and its gradients are f64. Parameters and what ranks own begin on 256 elements, a block
// of moments in 8 bits; what lies between them is 0 and stays 0.
//
// Shared with other ranks (Sharing), a bucket holds the parameters of one unit, and rank i of the S
// that share it owns elements i n / S .. (i + 1) n / S: their masters, moments and summed gradient
// are here and nowhere else. So a parameter's part on a rank is a range of its elements, whatever
// its shape. Values are whole on every rank (`full` off: ZeRO-1; S = 1: DDP), or only between
// gather() and drop() of a unit that reads them (`full`: FSDP, and HSDP where `replicas` has
// ranks).
//
// Gradients are a tensor each, the one that backward made, so the first is neither copied nor
// widened; others are added to it where it is f32 (f64) and nobody else has it. They live from backward to the next step: their memory is what forward's activations
// had, and goes back to it. Where ranks add them up they live until reduce(); a bucket that no
// other rank has, such as experts that lie over all ranks, keeps its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/params/param.h"

namespace troupe {

struct NamedParam {
  std::string name;
  Param* param;
  int64_t unit = 0;  // the first that reads it
};

// What a bucket's parameters have in common.
struct BucketKey {
  bool matrix = false;  // group kMatrix of two or more dimensions: what Muon takes
  bool decay = true;
  double lr_scale = 1;
  bool operator==(const BucketKey&) const = default;
};

// The ranks that hold the same box of a parameter: `owners` cut one copy of the state between them,
// `replicas` are those that own the same part of another copy. `holders` names them, the same text
// on all of them and no other's: "dense", "experts of place 3". `parts` together have the whole of
// each matrix: one rank for each different box, in the order of their offsets, that owns the same
// elements of its box as this rank does of its own. Only where an optimizer asks for it.
struct Owners {
  std::shared_ptr<ProcessGroup> owners = std::make_shared<ProcessGroup>();
  std::shared_ptr<ProcessGroup> replicas = std::make_shared<ProcessGroup>();
  std::string holders = {};
  std::shared_ptr<ProcessGroup> parts = std::make_shared<ProcessGroup>();
};

struct Sharing {
  bool alone = true;  // one rank: nothing below counts
  bool full = false;
  std::function<Owners(const NamedParam&)> owners = {};  // by who holds the same box
  // That gradients are summed in between ranks; f32 of a model in f64: f64.
  at::ScalarType sum_type = at::kFloat;
};

struct Bucket {
  BucketKey key;
  at::ScalarType dtype;
  int64_t unit = -1;                   // -1: of all units
  Owners sharers = {};                 // all its parameters have these
  bool summed = false;                 // over other ranks, owners or replicas
  int64_t size = 0;                    // a multiple of the owners' number
  int64_t own_from = 0, own_size = 0;  // this rank's range
  at::Tensor value = {};               // [size] of dtype
  at::Tensor own = {};                 // [own_size] of dtype; part of `value` unless `full`
  at::Tensor master = {};  // [own_size] f32; `own` itself if that is f32, f64; bf16: none
  at::Tensor low = {};     // [own_size] int16, of bf16: `own` and it are the master
  at::Tensor grad = {};    // [own_size] f32 (f64) of a step, where the bucket is summed
  std::vector<at::Tensor> state = {};  // [own_size] each, the optimizer's
  // [own_size / 256] f32 each: of a state that is uint8 codes (core/number/moment8.h); else none
  std::vector<at::Tensor> scales = {};
  std::vector<int64_t> members = {};  // indices of slots()
  bool dropped_between_uses = false;
  int uses = 0;        // gather() without drop(), where dropped between uses
  bool stale = false;  // `own` changed since `value` was gathered
  Pending gathering = {};
  bool in_halves() const { return dtype == at::kBFloat16; }
  bool has_master() const { return dtype == at::kHalf; }  // beside the values
  // The buffers that the masters are in.
  std::vector<at::Tensor> masters() const {
    return in_halves() ? std::vector<at::Tensor>{own, low} : std::vector<at::Tensor>{master};
  }
};

// A bucket's masters, or a part's of it, from their halves: a new tensor in f32.
at::Tensor joined(const at::Tensor& value, const at::Tensor& low);
// The halves of f32 numbers into `value` and `low`.
void split(const at::Tensor& master, const at::Tensor& value, const at::Tensor& low);

class ParamStore {
 public:
  struct Slot {
    NamedParam named;
    int64_t bucket = 0, offset = 0;
    std::vector<at::Tensor> state = {};  // the optimizer's of another size (Optimizer::slot_states)
  };

  // Makes the values of all: trainable ones as views, the others (frozen, state) on their own.
  // `key_of` settles each trainable one's bucket.
  ParamStore(std::vector<NamedParam> params, const at::TensorOptions& options,
             const std::function<BucketKey(const NamedParam&)>& key_of, Sharing sharing = {});

  void initialise_all(uint64_t seed);
  void masters_from_values();  // after values were written: initialisation, weights alone loaded
  void values_from_masters();  // after a checkpoint was loaded

  // Gradients of a step. begin_step forgets the last one's; add() holds the first that a parameter
  // gets, whose bits nobody may change from then on, and adds the others, in f32 (f64); end_step()
  // gives zeros to those that got none.
  void begin_step();
  void add(int64_t slot, const at::Tensor& grad);
  void end_step();
  const at::Tensor& grad(int64_t slot) const;  // flat: f32 (f64), or one tensor of backward's type
  // What this rank counts in the norm: each element of each parameter on one rank alone.
  std::vector<at::Tensor> counted_grads() const;

  // Between ranks; nothing where a bucket has no others. `slots` of one unit or more. gather() only
  // starts what need() waits for; drop() ends one gather().
  void gather(const std::vector<int64_t>& buckets);
  void need(const std::vector<int64_t>& buckets);
  void drop(const std::vector<int64_t>& buckets);
  // Starts to sum the gradients that the buckets got since the last call; `last`: no more of them
  // come in this step. Waits for the owners' sums of the call before; those over replicas, which
  // begin then, are waited for by end_step().
  void reduce(const std::vector<int64_t>& buckets, bool last);
  // Gives owners' masters and state to their replicas: rank 0 of `replicas` has loaded them.
  void spread_loaded();
  bool reads_loaded(const Bucket& bucket) const;  // this rank is that rank 0

  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  std::vector<Slot>& slots() { return slots_; }
  const std::vector<Slot>& slots() const { return slots_; }
  const std::vector<NamedParam>& others() const { return others_; }  // not trained
  int64_t slot_of(const Param* param) const;                         // -1: not trained
  // A slot's part of one of its bucket's own buffers (own, master, grad, state), flat; and which of
  // the parameter's elements that is.
  struct Range {
    int64_t from = 0, size = 0;
  };
  Range owned(int64_t slot) const;
  std::vector<int64_t> owned_members(const Bucket& bucket) const;  // of which a part is here
  at::Tensor part(int64_t slot, const at::Tensor& buffer) const;
  at::Tensor part_of_blocks(int64_t slot, const at::Tensor& scales) const;  // the same of scales
  Owners sharers_of(const NamedParam& named) const;
  const at::TensorOptions& options() const { return options_; }  // of the values that a model reads

 private:
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
  void make_buffers(Bucket& bucket, const at::TensorOptions& options);
  at::Tensor take_grads(const Bucket& bucket);  // [size], in the type of sums
  void finish(Reduction& reduction);
  void finish_all();

  Sharing sharing_;
  at::TensorOptions options_;
  std::vector<Slot> slots_;
  std::vector<NamedParam> others_;
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> grads_;  // of each slot, or undefined
  std::vector<char> is_sum_;       // of each slot: its gradient is a sum that we made
  std::vector<Reduction> reductions_;
  std::vector<ReplicaSum> replica_sums_;  // under way until the step's end
};

// The tensor and, where it is per expert, the expert with the first value that is not finite.
struct BadValue {
  std::string name;  // an expert's own name
  int64_t bad = 0, of = 0;
};
// Over the slots in the order given, as far as they are owned here; nothing: all are finite.
std::vector<BadValue> bad_values(const ParamStore& store, at::Tensor Bucket::*buffer);
std::vector<BadValue> bad_gradients(const ParamStore& store);
// In the whole values of one of them, such as its gradient before it is summed over ranks.
std::vector<BadValue> bad_values_of(const NamedParam& named, const at::Tensor& values);

}  // namespace troupe
