// From a data set's batch, plain vectors on the host, to the tensors of microbatches.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "troupe/data/tokens/dataset.h"
#include "troupe/distributed/mesh/dealing.h"
#include "troupe/nn/attention/context_slice.h"
#include "troupe/nn/model/model.h"

namespace troupe {

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
  bool keep_choices = false;         // asks the step for the routers' choices
};

// The weight of a batch's targets, and how many count.
struct TargetSums {
  double weight = 0;
  int64_t tokens = 0;
};
TargetSums target_sums(const TokenBatch& batch);

// Microbatch m has rows m * micro .. (m + 1) * micro; `micro` divides their number. If these are
// fewer than `steps` microbatches, ones without rows follow. Batch::documents is set only if a row
// has more than one, and validity only if there is padding. All numbers are those of the batch
// given: a rank that has a part of a batch adds what the others have.
//
// Under context parallelism a microbatch has this rank's part of each row (data/tokens/row_part.h,
// nn/attention/context_slice.h), and weights are those of the whole row. Rows that cannot be cut
// evenly are padded with invalid tokens.
Feed make_feed(const TokenBatch& batch, int64_t micro, const c10::Device& device, int64_t steps = 0,
               const RowCut& cut = {});

}  // namespace troupe
