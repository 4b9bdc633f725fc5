#include "troupe/core/number/split_f32.h"

namespace troupe {

void split_f32(std::span<const float> from, BF16* value, uint16_t* low) {
  for (size_t i = 0; i < from.size(); ++i) {
    const SplitF32 s = split_f32(from[i]);
    value[i].bits = s.value;
    low[i] = s.low;
  }
}

void join_f32(const BF16* value, const uint16_t* low, std::span<float> to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = join_f32(value[i].bits, low[i]);
}

}  // namespace troupe
