// Memory of a recipe's model on a single rank, by unit: the input of all forecasts.
//
// Memory per parameter is exact: parameters are counted as the optimizer will see them. Activations
// are what the modules declare (nn/config/costs.h), times the tokens of a microbatch. The workspace
// is the larger of the output head's and one block's.
#pragma once

#include <vector>

#include "troupe/nn/model/model.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

struct StateBytes {
  double elements = 0;   // trained
  double values = 0;     // their bytes
  double gradients = 0;  // in backward's type
  double masters = 0;    // f32: the lower halves of bf16 values, whole beside f16
  double moments = 0;    // and other optimizer and router state
  double frozen = 0;     // bytes of values that are not trained, and of 8-bit copies of others
  double low_bit = 0;    // of `frozen`: in few bits, which no checkpoint holds
  // train.offload_state on a GPU: bytes of masters and moments that are in host memory instead, and
  // the most of them that are brought at once (train/optim/state_stream.h).
  double host = 0, window = 0;
  double host_moments = 0;  // of `host`
  // Elements of matrices whose update needs the whole matrix (muon); those of the largest matrix
  // and of the largest parameter. `cut`: masters are stored as halves, and a parameter is updated
  // some matrices at a time.
  double matrices = 0, matrix = 0, largest = 0;
  bool cut = false;
};

struct UnitMemory {
  // Parameters that this unit reads first: whole on each rank, cut over ranks that share matrices
  // (few key heads count as cut), and all experts.
  StateBytes dense, cut, experts;
  double saved = 0;      // activations of one microbatch, its input included
  double input = 0;      // its input, of one microbatch
  bool again = false;    // recomputed in backward: only its input is kept
  double offloaded = 0;  // of `saved`, in host memory between forward and backward
  // Of a microbatch between its forward and its backward, on the device.
  double held() const { return again ? input : saved - offloaded; }
  double working = 0;   // bytes at work while it is computed, and its own activations are kept
  double unpacked = 0;  // of `working`: its largest parameter in few bits, while it is multiplied
  bool trained_table = false;  // the head's: the table that it multiplies with has a gradient
};

// train.teacher, all 0 without one: bytes of its weights, of what it keeps beside a chunk of the
// head's logits, and at work in its own forward; operations of that for a token.
struct TeacherCosts {
  double weights = 0, kept = 0, working = 0, flops = 0;
};
TeacherCosts teacher_costs(const Recipe& recipe, int64_t micro_batch, bool on_gpu);

struct ModelMemory {
  bool on_gpu = false;
  TeacherCosts teacher = {};  // on the rank that has the head
  std::vector<UnitMemory> units;
  double workspace = 0;  // on top of activations at the start of backward, of all units
  // The same of a rank that has some of the units, by their numbers.
  double workspace_of(const std::vector<size_t>& own) const;
};

// `model`: the recipe's, without values; of a rank that shares matrices with others, its part.
ModelMemory model_memory(const Recipe& recipe, const RunPlan& plan, bool on_gpu, Model& model);

// Peak extra memory of the update on a rank with `share` of the parameters, whose state `owners`
// ranks share: they gather a bucket's directions in f32 and update a parameter some matrices at a
// time. `states` are of parts of matrices, of which `parts` ranks put the whole ones together.
double update_memory(const StateBytes& states, double share, int64_t owners, int64_t parts = 1);

// The buffers on the device through which `host` bytes of state pass, in windows of `window` bytes.
double staging_memory(double host, double window);

// Bytes per element of StateBytes::matrices that sharing ranks exchange: 0 except for muon.
double direction_width(const Recipe& recipe);

// Bytes of a value in the compute type; `on_gpu` resolves train.precision auto.
double value_width(const Recipe& recipe, bool on_gpu);

// Memory of libraries and the device runtime, and what the allocator keeps in its cache for
// `passing` bytes of temporary tensors.
double runtime_memory(bool on_gpu, double passing);

}  // namespace troupe
