// How the output head cuts its tokens, for the head itself and for the forecast of its memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace troupe {

// Tokens whose logits are made together: what stays in a processor's caches, and what fills a GPU,
// whose weight gradient is read and written once a chunk.
constexpr int64_t head_rows(int64_t vocab, bool on_gpu) {
  const int64_t elements = on_gpu ? int64_t{256} << 20 : int64_t{8} << 20;
  return std::max<int64_t>(128, elements / std::max<int64_t>(1, vocab));
}

}  // namespace troupe
