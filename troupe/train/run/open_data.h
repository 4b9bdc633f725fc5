// A recipe's data and tokenizer, opened and checked against the rest of the recipe.
#pragma once

#include <memory>

#include "troupe/data/tokenizer/tokenizer.h"
#include "troupe/data/tokens/dataset.h"
#include "troupe/train/layout/resolved_run.h"

namespace troupe {

struct OpenedData {
  std::unique_ptr<Tokenizer> tokenizer;  // null: the recipe names none
  Data data;
};

struct DataLogs {
  Log files;  // what is to be said of files
  Log tries;  // of a network that failed and are made again
};

// Throws where a file is missing or bad (one Error for all the files of which that is true), where the vocabulary is smaller than the tokenizer's,
// where there is nothing to train on, and where a source would be used up before the run ends.
// Waits for a network end where `stop` holds, by AskedToStop, then and whenever it is read.
OpenedData open_data(const ResolvedRun& run, const DataLogs& logs, const StopQuestion& stop = {});
// The same without what trains: for evaluation.
OpenedData open_valid(ResolvedRun run, const Log& log);

}  // namespace troupe
