// Warnings about data files, which all ranks open: each once, and not once a rank.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/file/log.h"
#include "troupe/distributed/parallel_state/parallel_state.h"

namespace troupe {

// Rank 0's warnings come at once. The others' are kept until all ranks have opened the data, when
// rank 0 gives those that it has not had itself, with the ranks whose they are.
class DataWarnings {
 public:
  DataWarnings(const ParallelState& parallel, Log log);
  DataWarnings(const DataWarnings&) = delete;
  DataWarnings& operator=(const DataWarnings&) = delete;
  ~DataWarnings();  // gives what is kept: opening has failed

  Log log() const;
  // All ranks call it; from then on each gives its own at once.
  void gather();

 private:
  class Lines;

  const ParallelState& parallel_;
  const Log log_;
  const std::shared_ptr<Lines> lines_;
};

// What rank 0 adds to its own warnings: "LINE (rank 2)", one for each line that it lacks; `of_rank`
// are the lines of each rank, the first rank 0's.
std::vector<std::string> other_ranks_lines(const std::vector<std::vector<std::string>>& of_rank);

}  // namespace troupe
