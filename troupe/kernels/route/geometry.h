// How the rows are cut into chunks, and where a chunk's sums are: pure arithmetic, so that sums
// depend on the shapes alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "troupe/core/number/round.h"
#include "troupe/kernels/route/route.h"

namespace troupe::route_detail {

inline constexpr int64_t kFastExperts = 1024;
inline constexpr int64_t kFastChoices = 32;
inline constexpr int64_t kFastGroups = 32;

inline bool is_fast(const RouteRule& rule, int64_t experts) {
  return experts <= kFastExperts && rule.choices <= kFastChoices && rule.groups <= kFastGroups;
}

// A chunk is some neighboring rows of one sequence.
struct Chunks {
  int64_t length;        // tokens of a sequence
  int64_t rows;          // of a chunk; the last of a sequence may have fewer
  int64_t per_sequence;  // chunks
  int64_t count;         // chunks in all

  struct Span {
    int64_t sequence, begin, end;
  };
  TROUPE_HOST_DEVICE Span span(int64_t chunk) const {
    const int64_t b = chunk / per_sequence, first = chunk % per_sequence * rows;
    const int64_t last = first + rows < length ? first + rows : length;
    return {b, b * length + first, b * length + last};
  }
};

inline Chunks cut(int64_t tokens, int64_t sequences, int64_t rows) {
  const int64_t length = tokens / sequences, per_sequence = ceil_div(length, rows);
  return {length, rows, per_sequence, per_sequence * sequences};
}

// CUDA: a chunk is a block's work. Small ones fill the device, large ones write fewer sums.
inline Chunks cut_for_blocks(const Route& a) {
  return cut(a.logits.rows, a.sequences, a.logits.rows > (1 << 16) ? 128 : 32);
}

struct ChunkTotals {
  double lse_squares, kept_scores;
  int64_t tokens;
};

// The workspace on CUDA: [chunks] and [chunks, E] each. The slow path also keeps the selection
// keys of the row that a block is at, and of its groups.
struct Partials {
  ChunkTotals* totals = nullptr;
  float* probs = nullptr;
  int32_t* counts = nullptr;
  int32_t* plain_counts = nullptr;
  uint32_t* keys = nullptr;
  uint32_t* group_keys = nullptr;
  int64_t bytes = 0;
};

inline Partials partials(const Route& a) {
  const int64_t chunks = cut_for_blocks(a).count, E = a.logits.cols;
  auto* base = static_cast<char*>(a.workspace);
  Partials p;
  const auto take = [&]<class T>(T*& pointer, int64_t n) {
    if (base != nullptr) pointer = reinterpret_cast<T*>(base + p.bytes);
    p.bytes += round_up(n * static_cast<int64_t>(sizeof(T)), 16);
  };
  take(p.totals, chunks);
  take(p.counts, chunks * E);
  if (a.probs.data != nullptr) take(p.probs, chunks * E);
  if (a.probs.data != nullptr && !a.is_plain()) take(p.plain_counts, chunks * E);
  if (!is_fast(a.rule, E)) {
    take(p.keys, chunks * E);
    take(p.group_keys, chunks * a.rule.groups);
  }
  return p;
}

}  // namespace troupe::route_detail
