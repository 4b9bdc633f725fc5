// The memory that a model of a recipe takes on a rank alone, unit by unit: what every forecast, of
// one process or of many ranks, is put together from.
//
// What is kept for every parameter is exact: they are counted as the optimizer will see them. What
// backward keeps is what modules declare (nn/models/costs.h), times the tokens of a microbatch. The
// working space is that of the larger of the output head and one block.
#pragma once

#include <vector>

#include "troupe/nn/models/model.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

struct StateBytes {
  double elements = 0;   // that are trained
  double values = 0;     // of those
  double gradients = 0;  // as backward makes them
  double masters = 0;    // of f32: the lower halves of bf16 values, whole ones beside f16
  double moments = 0;    // and other state of the optimizer and of routers
  double frozen = 0;     // values that are not trained
  // Elements of matrices whose update is a direction of the whole matrix (muon); of those in the
  // largest matrix and in the largest parameter. `cut`: masters are in halves, and some matrices of
  // a parameter are worked on at a time.
  double matrices = 0, matrix = 0, largest = 0;
  bool cut = false;
};

struct UnitMemory {
  StateBytes dense, experts;  // of parameters that this unit is the first to read
  double saved = 0;           // for backward, of one microbatch; its input is in it
  double input = 0;           // the unit's, of one microbatch
  bool again = false;         // computed again in backward: between the passes its input is kept
};

struct ModelMemory {
  bool on_gpu = false;
  std::vector<UnitMemory> units;
  double workspace = 0;  // on top of what is kept when backward begins
};

// `model` is the recipe's, without values.
ModelMemory model_memory(const Recipe& recipe, bool on_gpu, Model& model);

// What the update takes on top of all that is kept, at most, where a rank has `share` of the
// parameters and `owners` ranks share their state: these gather the directions of a bucket, f32,
// and work on some matrices of a parameter at a time.
double update_memory(const StateBytes& states, double share, int64_t owners);

// Bytes of each of StateBytes::matrices that ranks exchange where they share it: 0 but for muon.
double direction_width(const Recipe& recipe);

// Bytes of a value that is computed with; `on_gpu` says what `auto` is in train.precision.
double value_width(const Recipe& recipe, bool on_gpu);

// Of libraries and the device before any tensor, and what an allocator keeps beside `passing` bytes
// of tensors that come and go.
double runtime_memory(bool on_gpu, double passing);

}  // namespace troupe
