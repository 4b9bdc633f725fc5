// How parameters are stored in flat buffers: a bucket holds those of equal settings, a slot says
// where in it one parameter is. param_store.h says what the buffers mean.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
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

// The ranks that hold the same box of a parameter, as a mesh of two axes: ranks of `shard` cut one
// copy of its state between them, ranks of `replicate` own the same part of each copy. `name`: the
// same text on all of them and no others, "dense", "experts of place 3". `parts`: ranks that
// together have the whole of each matrix, one for each different box, in the order of their offsets,
// that owns the same elements of its box as this rank does of its own. Only where an optimizer asks
// for it.
struct ShardMesh {
  std::shared_ptr<ProcessGroup> shard = std::make_shared<ProcessGroup>();
  std::shared_ptr<ProcessGroup> replicate = std::make_shared<ProcessGroup>();
  std::string name = {};
  std::shared_ptr<ProcessGroup> parts = std::make_shared<ProcessGroup>();
};

struct Bucket {
  BucketKey key;
  at::ScalarType dtype;
  int64_t unit = -1;                   // -1: of all units
  ShardMesh mesh = {};                 // of all its parameters
  bool summed = false;                 // over other ranks of the mesh
  int64_t size = 0;                    // a multiple of the ranks of mesh.shard
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

struct ParamSlot {
  NamedParam named;
  int64_t bucket = 0, offset = 0;
  std::vector<at::Tensor> state = {};  // the optimizer's of another size (Optimizer::slot_states)
};

// Which of a parameter's elements are in its bucket's own buffers (own, master, grad, state), and
// its part of one of these, flat.
struct OwnedRange {
  int64_t from = 0, size = 0;
};
OwnedRange owned_range(const ParamSlot& slot, const Bucket& bucket);
at::Tensor owned_part(const ParamSlot& slot, const Bucket& bucket, const at::Tensor& buffer);
// The same of a buffer with a number for each block.
at::Tensor owned_blocks_of(const ParamSlot& slot, const Bucket& bucket, const at::Tensor& scales);

// A bucket's masters, or a part's of it, from their halves: a new tensor in f32.
at::Tensor joined(const at::Tensor& value, const at::Tensor& low);
// The halves of f32 numbers into `value` and `low`.
void split(const at::Tensor& master, const at::Tensor& value, const at::Tensor& low);

}  // namespace troupe
