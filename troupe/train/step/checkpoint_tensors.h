// What a checkpoint holds of a training state: weights (f32 masters, if there are), optimizer state,
// routers' state. Each rank names what it owns. Weights in few bits are loaded, and never saved.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/train/optim/optimizer.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

class CheckpointTensors {
 public:
  // `reads_low_bit`: weights in few bits come from a checkpoint, and are not as they were drawn.
  CheckpointTensors(ParamStore& store, const Optimizer& optimizer, bool reads_low_bit)
      : store_(store), optimizer_(optimizer), reads_low_bit_(reads_low_bit) {}

  // `to_load`: of ranks that own the same, only the first names it, and loaded() broadcasts it to
  // the others. `frozen_of`: of frozen weights those of these names alone; null: all.
  struct Saved {
    bool weights_alone = false;
    bool to_load = false;
    const std::set<std::string>* frozen_of = nullptr;
  };
  void add_to(CheckpointState& state, Saved what);
  // The names of the frozen weights of which this rank holds something: all but what is trained and
  // what training changes.
  std::set<std::string> frozen() const;
  void loaded(bool weights_alone);  // after a checkpoint filled what add_to named

 private:
  StateTensor state_tensor(int64_t slot, size_t i, const std::string& name);
  // To load a weight in few bits: packed as its numbers come, an expert or a matrix at a time, so
  // that the model is never whole in full precision.
  void add_low_bit(CheckpointState& state, const NamedParam& named);

  ParamStore& store_;
  const Optimizer& optimizer_;
  bool reads_low_bit_;
  // Loaded 8-bit optimizer state, as f32 on the host by slot and state, until loaded() quantizes
  // it: pieces of a file need not end at a block.
  std::map<std::pair<int64_t, size_t>, at::Tensor> brought_;
  std::mutex brought_mutex_;
  std::mutex packing_mutex_;  // one piece at a time is on the device
};

}  // namespace troupe
