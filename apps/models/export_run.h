// What an export of a run is made of: found from what the run's folder holds.
#pragma once

#include <string>
#include <vector>

#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/core/file/log.h"

namespace troupe {

struct ExportSource {
  std::string checkpoint;  // RUN/step-001200
  ModelConfig model;       // as the checkpoint has it, with its adapters
  HfConfig config;         // without them
  std::string tokenizer;   // folder or file; empty: none
  std::vector<std::pair<std::string, std::string>> files = {};  // for ExportOptions
  int64_t adapters = 0;                    // factors of adapters in the checkpoint
  std::vector<std::string> left_out = {};  // the run's state that no file of theirs has a place for
};

// `path`: a run's folder (the newest complete step is taken), or one of its steps. A run that was
// imported has what it was imported with (RUN/hf); one that was trained here its recipe. A weight
// of the checkpoint that the family's files have no place for is E4005: nothing is dropped in
// silence. A run with adapters that began from an imported one has that one's config. A tokenizer that is not a file of theirs is E3202 unless the recipe names none.
ExportSource export_source(const std::string& path, const Log& log);

}  // namespace troupe
