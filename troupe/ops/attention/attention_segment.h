// Queries of a flat row of tokens and the keys that they see: what attention takes its work in.
#pragma once

#include <algorithm>
#include <cstdint>

namespace troupe {

// Queries [q, q + rows) see keys from k on: query q + i those up to k + past + i, but none from
// k + keys on. By default the last key is the last query's own.
struct AttentionSegment {
  int64_t q, rows, k, past;
  int64_t keys = past + rows;

  bool operator==(const AttentionSegment&) const = default;
};

// The keys [from, to) of a segment that query q + i sees, counted from its first; window 0: none.
struct SeenKeys {
  int64_t from, to;
};
constexpr SeenKeys seen_keys(const AttentionSegment& s, int64_t i, int64_t window) {
  const int64_t own = s.past + i, to = std::min(own + 1, s.keys);
  const int64_t from = window > 0 ? std::max<int64_t>(0, own - window + 1) : 0;
  return {std::min(from, to), to};
}

}  // namespace troupe
