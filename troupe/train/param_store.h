// All parameters of a model in few flat buffers, and their gradients of a step.
//
// Trainable parameters are cut into buckets of equal settings. A bucket has one buffer for the
// values that the model reads (a Param's value is a view of it), one of f32 masters where the
// model's type is smaller (else the values themselves), and those of the optimizer. Parameters
// begin on 64 bytes; what lies between them is 0 and stays 0.
//
// Gradients are a tensor each, the one that backward made, so the first is neither copied nor
// widened. They live from backward to the next step: their memory is what forward's activations
// had, and goes back to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "troupe/dist/param.h"

namespace troupe {

struct NamedParam {
  std::string name;
  Param* param;
};

// What a bucket's parameters have in common.
struct BucketKey {
  bool matrix = false;  // group kMatrix of two or more dimensions: what Muon takes
  bool decay = true;
  double lr_scale = 1;
  bool operator==(const BucketKey&) const = default;
};

struct Bucket {
  BucketKey key;
  at::ScalarType dtype;
  int64_t size = 0;
  at::Tensor value = {};               // [size] of dtype
  at::Tensor master = {};              // [size] f32; `value` itself if that is f32
  std::vector<at::Tensor> state = {};  // [size] each, the optimizer's
  std::vector<int64_t> members = {};   // indices of slots()
  bool has_master() const { return dtype != at::kFloat; }
};

class ParamStore {
 public:
  struct Slot {
    NamedParam named;
    int64_t bucket = 0, offset = 0;
  };

  // Makes the values of all: trainable ones as views, the others (frozen, state) on their own.
  // `key_of` settles each trainable one's bucket.
  ParamStore(std::vector<NamedParam> params, const at::TensorOptions& options,
             const std::function<BucketKey(const NamedParam&)>& key_of);

  void initialise_all(uint64_t seed);
  void masters_from_values();  // after values were written: initialisation, weights alone loaded
  void values_from_masters();  // after a checkpoint was loaded

  // Gradients of a step. begin_step forgets the last one's; add() holds the first that a parameter
  // gets, whose bits nobody may change from then on, and adds the others, in f32; end_step() gives
  // zeros to those that got none.
  void begin_step();
  void add(int64_t slot, const at::Tensor& grad);
  void end_step();
  const at::Tensor& grad(int64_t slot) const;  // flat: f32, or one tensor of backward's type
  const std::vector<at::Tensor>& grads() const { return grads_; }  // of all slots

  std::vector<Bucket>& buckets() { return buckets_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::vector<Slot>& slots() const { return slots_; }
  const std::vector<NamedParam>& others() const { return others_; }  // not trained
  int64_t slot_of(const Param* param) const;                         // -1: not trained
  // A slot's part of one of its bucket's buffers, flat.
  at::Tensor part(int64_t slot, const at::Tensor& buffer) const;

 private:
  std::vector<Slot> slots_;
  std::vector<NamedParam> others_;
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> grads_;  // of each slot, or undefined
  std::vector<char> is_sum_;       // of each slot: its gradient is a sum that we made
};

// The tensor and, where it is per expert, the expert with the first value that is not finite.
struct BadValue {
  std::string name;  // an expert's own name
  int64_t bad = 0, of = 0;
};
// Over the slots in the order given; nothing: all are finite.
std::vector<BadValue> bad_values(const ParamStore& store, at::Tensor Bucket::*buffer);
std::vector<BadValue> bad_gradients(const ParamStore& store);

}  // namespace troupe
