// All parameters of a model in few flat buffers, their gradients of a step, and what of both other
// ranks hold.
//
// Trainable parameters are cut into buckets of equal settings. A bucket has one buffer for the
// values that the model reads (a Param's value is a view of it), one for what these leave of their
// f32 masters, and those of the optimizer. A master is the value itself in f32; a bf16 value and 16
// bits more (core/number/split_f32.h); an f32 number of its own beside f16; an f64 value is its own
// master, and its gradients are f64. Parameters and what ranks own begin on 256 elements, a block
// of moments in 8 bits; the elements between them are and stay 0.
//
// Shared with other ranks (Sharing), a bucket holds the parameters of one unit, and rank i of the S
// that share it owns elements i n / S .. (i + 1) n / S: their masters, moments and summed gradient
// are here and nowhere else. So a parameter's part on a rank is a range of its elements, whatever
// its shape. Values are whole on every rank (`full` off: ZeRO-1; S = 1: DDP), or only between
// gather() and drop() of a unit that reads them (`full`: FSDP, and HSDP where mesh.replicate
// has ranks).
//
// step_gradients.h says how gradients live.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/params/param.h"
#include "troupe/train/params/buckets.h"
#include "troupe/train/params/step_gradients.h"

namespace troupe {

// This rank's two shard meshes, of dense parameters and of experts, for each box that it may hold.
struct ShardMeshes {
  int64_t tensor = 1;  // tensor ranks
  // By the number of neighboring tensor ranks with the same box (Param::tensor_repeat).
  std::map<int64_t, ShardMesh> dense = {};
  // Likewise, of unit 0 where other stages read its table too: they replicate it. Empty: as dense.
  std::map<int64_t, ShardMesh> tables = {};
  // By the number of slices of an expert's matrices, where it matters to `parts`; 1: all others.
  std::map<int64_t, ShardMesh> experts = {};

  const ShardMesh& of(const NamedParam& named) const;
};

struct Sharing {
  bool alone = true;  // one rank: nothing below counts
  bool full = false;
  bool by_unit = false;  // alone too a bucket holds the parameters of one unit
  ShardMeshes meshes = {};
  // The type in which gradients are summed between ranks; f64 for a model in f64.
  at::ScalarType sum_type = at::kFloat;
  bool exact = false;  // in no order: StepGradients
};

// Where masters beside the values, their lower halves, and the optimizer's state by element are: in
// the device's memory, or in pinned host memory (train.offload_state), from which an update brings
// them piece by piece (train/optim/state_stream.h).
enum class StateHome { kDevice, kHost };

class ParamStore {
 public:
  using Slot = ParamSlot;

  // Makes the values of all: trainable ones as views, the others (frozen, state) on their own.
  // `key_of` settles each trainable one's bucket.
  ParamStore(std::vector<NamedParam> params, const at::TensorOptions& options,
             const std::function<BucketKey(const NamedParam&)>& key_of, Sharing sharing = {},
             StateHome state_home = StateHome::kDevice);
  ParamStore(const ParamStore&) = delete;  // its gradients refer to it
  ParamStore& operator=(const ParamStore&) = delete;

  void initialize_all(uint64_t seed);
  void masters_from_values();  // after values were written: initialization, weights alone loaded
  void values_from_masters();  // after a checkpoint was loaded

  StepGradients& gradients() { return gradients_; }
  const StepGradients& gradients() const { return gradients_; }

  // Between ranks; nothing where a bucket has no others. `slots` of one unit or more. gather() only
  // starts what need() waits for; drop() ends one gather().
  void gather(const std::vector<int64_t>& buckets);
  void need(const std::vector<int64_t>& buckets);
  void drop(const std::vector<int64_t>& buckets);
  // Gives owners' masters and state to their replicas: rank 0 of mesh.replicate has loaded them.
  void spread_loaded();
  bool reads_loaded(const Bucket& bucket) const;                 // this rank is that rank 0
  at::Tensor state_zeros(int64_t n, at::ScalarType type) const;  // [n] where state is

  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  std::vector<Slot>& slots() { return slots_; }
  const std::vector<Slot>& slots() const { return slots_; }
  const std::vector<NamedParam>& others() const { return others_; }  // not trained
  int64_t slot_of(const Param* param) const;                         // -1: not trained
  OwnedRange owned(int64_t slot) const;
  // Of which a part is here; `bucket` is one of buckets(), or a window on its own range.
  std::vector<int64_t> owned_members(const Bucket& bucket) const;
  // A slot's part of one of its bucket's own buffers.
  at::Tensor part(int64_t slot, const at::Tensor& buffer) const;
  at::Tensor part_of_blocks(int64_t slot, const at::Tensor& scales) const;  // the same of scales
  ShardMesh mesh_of(const NamedParam& named) const;
  const at::TensorOptions& options() const { return options_; }  // of the values that a model reads

 private:
  void make_buffers(Bucket& bucket, const at::TensorOptions& options);
  const Bucket& bucket_of(int64_t slot) const;

  Sharing sharing_;
  at::TensorOptions options_;
  StateHome state_home_;
  std::vector<Slot> slots_;
  std::vector<NamedParam> others_;
  std::vector<Bucket> buckets_;
  StepGradients gradients_;
};

}  // namespace troupe
