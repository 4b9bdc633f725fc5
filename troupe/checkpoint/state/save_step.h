// One save of one step by all ranks, from bytes in host memory to a published folder. The order:
// staging folder; each rank its shards, synced; rank 0 reads all indexes back and sees that every
// tensor is covered once; manifest; rename; `latest`; prune. A fault at any point removes what was
// staged and is thrown on every rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/checkpoint/files/shard_writer.h"
#include "troupe/checkpoint/folder/config.h"
#include "troupe/checkpoint/state/checkpoint_group.h"
#include "troupe/core/file/log.h"

namespace troupe {

struct SaveInfo {
  int64_t step = 0;
  std::string scalars = "{}";  // the trainer's counters, cursors, ...: one JSON object
  Fingerprint fingerprint = {};
  std::optional<BaseCheckpoint> base = {};  // has the weights that are not saved
  bool bad = false;                  // also where NaN or infinite numbers are found in writing
  bool force = false;                // replaces the same step, if it is there
  std::optional<double> score = {};  // validation loss, for keep_best
  double stalled = 0;                // s that training waited for this save before it began
};

struct SaveResult {
  int64_t step = 0;
  std::string folder = "";
  std::string skipped = "";  // why, if nothing was written
  bool bad = false;   // NaN or infinite numbers: tagged, not `latest`, never resumed by itself
  int64_t bytes = 0;  // written by this rank
  double stall_seconds = 0;  // that the caller of save() waited
  double write_seconds = 0;
};

struct SaveTools {
  Fs& fs;
  const Faults& faults;
  const CheckpointGroup& group;
  const Log& log;
  const std::atomic<bool>* abandon = nullptr;
};

// `pieces`: what this rank writes. Fills the result's `skipped`, `bad` and `bytes`.
void save_step(const SaveTools& tools, const CheckpointConfig& config, const std::string& run_id,
               const SaveInfo& info, const std::vector<ShardPiece>& pieces, SaveResult& result);

}  // namespace troupe
