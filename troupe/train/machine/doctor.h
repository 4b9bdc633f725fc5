// Checks of this machine before a run: what would make it fail or run slowly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/ops/support/gpu_code.h"
#include "troupe/train/machine/finding.h"

namespace troupe {

struct OpenFiles;
struct Recipe;
struct StartNeeds;

// Processor, memory, disk of the folder, shared memory, limits, devices, libraries, clock,
// environment; then, as warnings, what machine_check.h measures. Nothing is left changed.
std::vector<Finding> examine(const std::string& folder);

// What a start of so many ranks needs beside what this machine has: files of a rank and of rank 0,
// ports, memory of the store that rank 0 serves.
std::vector<Finding> examine_start(int64_t ranks);

// Which kernels will compute the recipe's experts on such a GPU; without one it is said of a Hopper
// GPU. The same function gives the line at the start of a run.
std::vector<Finding> examine_experts(const Recipe& recipe, const GpuKind& here);
GpuKind first_gpu();  // that runs this build; capability 0: none

// One GPU, whose kernels are `code` (code_text), or do not run: `fault` (why_not_on).
Finding judge_gpu(const GpuFound& gpu, const std::string& code, const std::string& fault);

// The single checks, on given numbers. Sizes in bytes, -1: unknown; limits, -1: none.
Finding judge_disk(const std::string& folder, int64_t free);
Finding judge_shared_memory(int64_t size);
Finding judge_host_memory(int64_t all, int64_t limit);
Finding judge_open_files(const OpenFiles& files);
// For `need` of them, by whom.
Finding judge_files_of(const std::string& whom, const OpenFiles& files, int64_t need);
std::vector<Finding> judge_start(const StartNeeds& needs, const OpenFiles& files, int64_t ports,
                                 int64_t memory);
Finding judge_locked_memory(int64_t limit, bool has_gpu);
Finding judge_free_of_host(int64_t free);  // bytes; -1: unknown
Finding judge_clock(int64_t now);          // seconds since 1970
Finding judge_threads(int64_t cores, int64_t threads);

}  // namespace troupe
