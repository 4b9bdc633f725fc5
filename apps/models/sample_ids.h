// The ids that models are compared by.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe {

// Two rows of up to 32 tokens below `vocab`, always the same ones.
at::Tensor sample_ids(int64_t vocab, int64_t max_positions);

}  // namespace troupe
