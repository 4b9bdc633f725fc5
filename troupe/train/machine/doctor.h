// Checks of this machine before a run: what would make it fail or run slowly.
#pragma once

#include <string>
#include <vector>

#include "troupe/train/machine/finding.h"

namespace troupe {

struct Recipe;

// Processor, memory, disk of the folder, shared memory, limits, devices, libraries, clock,
// environment; then, as warnings, what machine_check.h measures. Nothing is left changed.
std::vector<Finding> examine(const std::string& folder);

// Which kernels will compute the recipe's experts on a GPU of that compute capability; 0: there is
// none, and it is said of a Hopper GPU. The same function gives the line at the start of a run.
std::vector<Finding> examine_experts(const Recipe& recipe, int capability);
int gpu_capability();  // of the first GPU here; 0: none

// The single checks, on given numbers. Sizes in bytes, -1: unknown; limits, -1: none.
Finding judge_disk(const std::string& folder, int64_t free);
Finding judge_shared_memory(int64_t size);
Finding judge_host_memory(int64_t all, int64_t limit);
Finding judge_open_files(int64_t limit);
Finding judge_locked_memory(int64_t limit, bool has_gpu);
Finding judge_clock(int64_t unix_seconds);
Finding judge_threads(int64_t cores, int64_t threads);

}  // namespace troupe
