// How much memory a run will take, and how long one of one process will be, from its recipe alone;
// many ranks: layout_forecast.h.
//
// What is kept for every parameter is exact: the model's parameters are counted as the optimizer
// will see them. What backward keeps is what modules declare (nn/models/costs.h), times the tokens
// of a microbatch. The working space is that of the larger of the output head and one block.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

struct MemoryForecast {  // bytes
  double weights = 0;
  double gradients = 0;    // f32 where several microbatches are added up, else as backward's
  double masters = 0;      // of f32: the lower halves of bf16 weights, whole ones beside f16
  double moments = 0;      // and other state of the optimizer and of routers
  double activations = 0;  // kept for backward, of one microbatch
  double workspace = 0;    // on top of them when backward begins
  double overlap = 0;      // of one microbatch: gradients come as activations go
  double update = 0;       // that the update takes beyond what backward had (model_memory.h)
  double runtime = 0;      // of libraries and the device before any tensor

  double total() const {
    return weights + gradients + masters + moments + activations + workspace - overlap + update +
           runtime;
  }
  static void visit(auto& m, auto&& f) {
    f("weights", m.weights);
    f("gradients", m.gradients);
    f("masters", m.masters);
    f("moments", m.moments);
    f("activations", m.activations);
    f("workspace", m.workspace);
    f("overlap", m.overlap);
    f("update", m.update);
    f("runtime", m.runtime);
  }
};

bool runs_on_gpu(const Recipe& recipe);  // run.device, and what `auto` stands for here
// Of the device that the recipe runs on; 0: it is asked for and is not here. Ranks of one machine
// share its host's memory evenly.
double available_memory(const Recipe& recipe, int64_t ranks_here = 1);

// `on_gpu` says what `auto` is in train.precision.
MemoryForecast forecast_memory(const Recipe& recipe, bool on_gpu);

// In all, of a rank of `world`, where the recipe's layout is settled.
double needed_memory(const Recipe& recipe, bool on_gpu, int64_t world = 1);

// A change that needs less: "train.micro_batch=4", its gain in bytes, and what it costs.
struct MemoryCut {
  std::string set;
  double gain = 0;
  std::string cost;
};
// Cheapest first; at most 3. Of a rank of `world`, where the recipe's layout is settled.
std::vector<MemoryCut> memory_cuts(const Recipe& recipe, bool on_gpu, int64_t world = 1);

// "memory 74.8 of 80.0 GiB. Cheapest: ...". Above 90 % it begins with W7006; above 100 % with
// E7006: the run does not fit.
struct MemoryVerdict {
  std::string line;
  bool warns = false;
  bool fits = true;
};
MemoryVerdict judge_memory(const Recipe& recipe, bool on_gpu, double available, int64_t world = 1);

// What a checkpoint takes on the disk: parameters and moments in f32, or as moments are kept.
double checkpoint_bytes(const Recipe& recipe, bool on_gpu);

// "177.0 MiB for 2 checkpoints of 59.0 MiB and one that is being written; 12.3 GiB are free".
// checkpoint.keep_every and keep_best are not in it: those stay besides. `fits` is false where less
// is free.
struct DiskVerdict {
  std::string line;
  double bytes = 0;  // of a checkpoint
  bool fits = true;
};
DiskVerdict judge_disk(const Recipe& recipe, bool on_gpu);

struct TimeForecast {
  double step_flops = 0;  // of the model, forward and backward
  double step_seconds = 0;
  double tokens_per_second = 0;
  double run_seconds = 0;
};
TimeForecast forecast_time(const Recipe& recipe, double flops_per_second);

// What a process may use here: the machine's memory, or less where its control group says so.
int64_t host_memory();
// The cores, likewise; a part of one counts as one.
int64_t host_cores();

std::string in_gib(double bytes);  // "74.8"

}  // namespace troupe
