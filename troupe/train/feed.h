// From a data set's batch, plain vectors on the host, to the tensors of microbatches.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "troupe/data/batch_reader.h"
#include "troupe/data/dataset.h"
#include "troupe/nn/models/model.h"

namespace troupe {

class Ranks;

struct Feed {
  std::vector<Batch> microbatches = {};  // of this rank
  int64_t all_microbatches = 0;          // of all ranks, those without rows not counted
  int64_t first_token = 0;               // of microbatch 0, in the global batch
  int64_t first_sample = 0;              // what follows is of the global batch
  int64_t samples = 0;
  int64_t tokens = 0;                // samples times sequence
  double weight_sum = 0;             // of all targets
  std::vector<double> weights = {};  // of the targets of each of these microbatches
  int64_t loss_tokens = 0;           // targets that count
};

// The reader's next batch. Nothing where the run is asked to stop while a server is waited for: the
// other ranks, who sum what they have of theirs, are told by this rank's share of the sum: 0, 0
// and 1.
std::optional<TokenBatch> next_batch(BatchReader& reader, const Ranks& ranks);

// Rows m * micro .. (m + 1) * micro make microbatch m; `micro` divides their number. Where fewer
// than `steps` come of that, microbatches without rows follow. Documents are told to the model only
// where a row has more than one, and validity only where there is padding. All numbers are those of
// the batch given: a rank that has a part of a batch puts in what the others have.
Feed make_feed(const TokenBatch& batch, int64_t micro, const c10::Device& device,
               int64_t steps = 0);

}  // namespace troupe
