// What of this machine a run would stumble over, told before it does.
#pragma once

#include <string>
#include <vector>

namespace troupe {

struct Finding {
  enum Verdict { kOk, kWarn, kFail };
  Verdict verdict = kOk;
  std::string what;       // "memory"
  std::string found;      // "62.8 GiB"
  std::string cure = {};  // of a warning or a failure
};

// Processor, memory, disk of the folder, shared memory, limits, devices, libraries, clock,
// environment; nothing is started or changed.
std::vector<Finding> examine(const std::string& folder);

// The judgements, on numbers, for tests. Bytes; -1: unknown; limits: -1 is none.
Finding judge_disk(const std::string& folder, int64_t free);
Finding judge_shared_memory(int64_t size);
Finding judge_host_memory(int64_t all, int64_t limit);
Finding judge_open_files(int64_t limit);
Finding judge_locked_memory(int64_t limit, bool has_gpu);
Finding judge_clock(int64_t unix_seconds);
Finding judge_threads(int64_t cores, int64_t threads);

std::string line_of(const Finding& finding);  // "ok    memory: 62.8 GiB"

}  // namespace troupe
