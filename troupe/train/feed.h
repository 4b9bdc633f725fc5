// From a data set's batch, plain vectors on the host, to the tensors of microbatches.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "troupe/data/dataset.h"
#include "troupe/nn/models/model.h"

namespace troupe {

struct Feed {
  std::vector<Batch> microbatches = {};
  int64_t first_sample = 0;
  int64_t samples = 0;
  int64_t tokens = 0;       // samples times sequence
  double weight_sum = 0;    // of all targets
  int64_t loss_tokens = 0;  // targets that count
};

// Rows m * micro .. (m + 1) * micro make microbatch m; `micro` divides their number. Documents are
// told to the model only where a row has more than one, and validity only where there is padding.
Feed make_feed(const TokenBatch& batch, int64_t micro, const c10::Device& device);

}  // namespace troupe
