#include "apps/models/sample_ids.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace troupe {

at::Tensor sample_ids(int64_t vocab, int64_t max_positions) {
  constexpr int64_t kRows = 2, kMost = 32;
  at::Tensor out = at::empty({kRows, std::min(kMost, max_positions)}, at::kLong);
  auto* const ids = out.mutable_data_ptr<int64_t>();
  uint64_t x = 1;
  for (int64_t i = 0; i < out.numel(); ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;  // Knuth's, the upper bits
    ids[i] = static_cast<int64_t>((x >> 33) % static_cast<uint64_t>(vocab));
  }
  return out;
}

}  // namespace troupe
