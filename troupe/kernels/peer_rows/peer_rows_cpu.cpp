// The CPU path: rows are shared out over the pool, each copied or filled at once.
#include <algorithm>
#include <cstring>

#include "troupe/kernels/peer_rows/peer_rows.h"

namespace troupe {
namespace {

constexpr int64_t kBytesPerRange = 1 << 16;

bool is_wanted(const PeerRows& a, int64_t r) {
  if (a.wanted == nullptr) return true;
  const int32_t* const first = a.wanted + r * a.choices;
  return std::any_of(first, first + a.choices, [](int32_t e) { return e >= 0; });
}

}  // namespace

void peer_rows_cpu(const PeerRows& a, const Pool& pool) {
  validate(a);
  if (a.rows() * a.row_bytes == 0) return;
  pool(a.rows(), kBytesPerRange / a.row_bytes + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t source = r / a.repeats, w = source / a.each;
      uint8_t* const to = a.out + r * a.row_bytes;
      if (is_wanted(a, r)) {
        std::memcpy(to, a.from[static_cast<size_t>(w)] + (source - w * a.each) * a.row_bytes,
                    static_cast<size_t>(a.row_bytes));
      } else if (a.fill >= 0) {
        std::memset(to, a.fill, static_cast<size_t>(a.row_bytes));
      }
    }
  });
}

}  // namespace troupe
