// Forecast of a run's memory, and of the time of a single process, from its recipe. Many ranks:
// layout_forecast.h.
//
// Memory per parameter is exact: parameters are counted as the optimizer will see them. Activations
// are what the modules declare (nn/config/costs.h), times the tokens of a microbatch. The workspace
// is the larger of the output head's and one block's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

struct MemoryForecast {  // bytes
  double weights = 0;    // and those of train.teacher
  // f32 if several microbatches are accumulated, else backward's type; with train.update in_backward
  // those of two units
  double gradients = 0;
  double masters = 0;      // f32: the lower halves of bf16 weights, whole beside f16
  double moments = 0;      // and other optimizer and router state
  double activations = 0;  // of one microbatch
  double workspace = 0;    // on top of them at the start of backward
  double overlap = 0;      // gradients that take the place of freed activations
  double update = 0;   // extra memory of the update beyond backward, or beside it (model_memory.h)
  double runtime = 0;  // libraries and the device runtime
  double host = 0;     // masters and moments in host memory, not in total()

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

bool runs_on_gpu(const Recipe& recipe);  // run.device, with `auto` resolved on this machine
// Memory of the recipe's device in bytes; 0: that device does not exist here. Ranks of one machine
// share its host memory evenly.
double available_memory(const Recipe& recipe, int64_t ranks_here = 1);

// `on_gpu` resolves train.precision auto.
MemoryForecast forecast_memory(const Recipe& recipe, bool on_gpu);

// Total bytes on one of `world` ranks; the layout must be resolved.
double needed_memory(const Recipe& recipe, bool on_gpu, int64_t world = 1);

// Bytes of masters and optimizer state that one of `world` ranks keeps in locked host memory
// (train.offload_state on a GPU); the layout must be resolved.
double host_state(const Recipe& recipe, bool on_gpu, int64_t world = 1);

// "9.8 GiB of host memory for masters and optimizer state, of 2 ranks here; 61.0 GiB are free".
// `free`: bytes; below 0: unknown. Above it E7006, with what would help.
struct HostVerdict {
  std::string line;
  bool fits = true;
};
HostVerdict judge_host_state(double of_rank, int64_t ranks_here, int64_t free);

// A setting that saves memory, "train.micro_batch=4", with its gain in bytes and its cost.
struct MemoryCut {
  std::string set;
  double gain = 0;
  std::string cost;
};
// Cheapest first, at most 4, for one of `world` ranks; the layout must be resolved.
std::vector<MemoryCut> memory_cuts(const Recipe& recipe, bool on_gpu, int64_t world = 1);

// "memory 74.8 of 80.0 GiB. Cheapest: ...". Above 90 % it begins with W7006; above 100 % with
// E7006: the run does not fit.
struct MemoryVerdict {
  std::string line;
  bool warns = false;
  bool fits = true;
};
MemoryVerdict judge_memory(const Recipe& recipe, bool on_gpu, double available, int64_t world = 1);

// Size of a checkpoint on disk: parameters in f32, moments in f32 or in their type.
double checkpoint_bytes(const Recipe& recipe, bool on_gpu);

// "177.0 MiB for 2 checkpoints of 59.0 MiB and one that is being written; 12.3 GiB are free".
// Checkpoints of keep_every and keep_best are not counted. `fits`: enough is free.
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
TimeForecast forecast_time(const Recipe& recipe, const RunPlan& plan, double flops_per_second);

// Memory that this process may use: the machine's, or its control group's limit.
int64_t host_memory();
// What of it processes may still take (MemAvailable); -1: unknown.
int64_t free_host_memory();
// Cores that this process may use; a fraction of a core counts as one.
int64_t host_cores();

std::string in_gib(double bytes);  // "74.8"

}  // namespace troupe
