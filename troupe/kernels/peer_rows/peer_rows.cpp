#include "troupe/kernels/peer_rows/peer_rows.h"

#include "troupe/core/check.h"

namespace troupe {

void validate(const PeerRows& a) {
  TROUPE_CHECK(0 <= a.peers && a.peers <= kMostPeers, a.peers, "peers, of at most", kMostPeers);
  TROUPE_CHECK(a.each >= 0 && a.repeats >= 0 && a.row_bytes >= 0, a.each, "rows of", a.row_bytes,
               "bytes,", a.repeats, "times");
  TROUPE_CHECK(a.rows() < INT32_MAX - 1024, a.peers, "peers of", a.each, "rows,", a.repeats,
               "times");
  TROUPE_CHECK(-1 <= a.fill && a.fill <= 255, "fill is", a.fill, "and must be a byte or -1");
  TROUPE_CHECK(a.wanted == nullptr || a.choices > 0, a.choices, "choices in wanted");
  if (a.rows() * a.row_bytes == 0) return;
  TROUPE_CHECK(a.out != nullptr, "out");
  for (int64_t w = 0; w < a.peers; ++w) {
    TROUPE_CHECK(a.from[static_cast<size_t>(w)] != nullptr, "rows of peer", w, "are missing");
  }
}

int64_t bytes_moved(const PeerRows& a) {
  const int64_t routing_bytes = a.wanted == nullptr ? 0 : a.choices * int64_t{sizeof(int32_t)};
  return a.rows() * (2 * a.row_bytes + routing_bytes);
}

void peer_rows_ref(const PeerRows& a) {
  validate(a);
  for (int64_t r = 0; r < a.rows(); ++r) {
    bool wanted = a.wanted == nullptr;
    for (int64_t c = 0; !wanted && c < a.choices; ++c) wanted = a.wanted[r * a.choices + c] >= 0;
    if (!wanted && a.fill < 0) continue;
    const int64_t source = r / a.repeats, w = source / a.each, i = source % a.each;
    for (int64_t b = 0; b < a.row_bytes; ++b) {
      a.out[r * a.row_bytes + b] = wanted ? a.from[static_cast<size_t>(w)][i * a.row_bytes + b]
                                          : static_cast<uint8_t>(a.fill);
    }
  }
}

}  // namespace troupe
