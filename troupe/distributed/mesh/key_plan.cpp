#include "troupe/distributed/mesh/key_plan.h"

#include <algorithm>

namespace troupe {

KeyPlan key_plan(const TokenChunks& chunks, int64_t rank, const WholeRows& whole, int64_t window) {
  const int64_t ranks = chunks.ranks(), n = chunks.own_tokens();
  KeyPlan out;
  out.from_rows.assign(static_cast<size_t>(ranks), 0);
  out.to_rows.assign(static_cast<size_t>(ranks), 0);
  for (int64_t r = 0; r < ranks; ++r) {
    if (r == rank) continue;
    for (const TokenSpan& keys : keys_of(query_parts(chunks, r, whole, window))) {
      for (const TokenRun& run : chunks.runs_of(rank)) {
        for (int64_t t = std::max(keys.from, run.from); t < std::min(keys.to, run.end()); ++t) {
          out.sent.push_back(keys.row * n + chunks.place_of(t).own);
          ++out.to_rows[static_cast<size_t>(r)];
        }
      }
    }
  }
  const std::vector<QueryPart> parts = query_parts(chunks, rank, whole, window);
  const std::vector<TokenSpan> spans = keys_of(parts);
  const auto each = [&](auto&& f) {
    for (const TokenSpan& keys : spans) {
      for (int64_t t = keys.from; t < keys.to; ++t) f(keys.row, chunks.place_of(t));
    }
  };
  each([&](int64_t, const TokenChunks::Place& place) {
    out.from_rows[static_cast<size_t>(place.rank)] += place.rank != rank;
  });
  std::vector<int64_t> next(static_cast<size_t>(ranks), whole.rows * n);  // the rows that came
  for (size_t r = 1; r < next.size(); ++r) next[r] = next[r - 1] + out.from_rows[r - 1];
  each([&](int64_t row, const TokenChunks::Place& place) {
    const bool own = place.rank == rank;
    out.order.push_back(own ? row * n + place.own : next[static_cast<size_t>(place.rank)]++);
  });
  int64_t first = 0;  // key of span s
  size_t s = 0;
  for (const QueryPart& part : parts) {
    while (spans[s].row != part.row || part.key >= spans[s].to) {
      first += spans[s].to - spans[s].from;
      ++s;
    }
    out.segments.push_back(
        {part.own, part.to - part.from, first + part.key - spans[s].from, part.from - part.key});
  }
  return out;
}

std::vector<int64_t> own_places(const TokenChunks& chunks, int64_t rank, int64_t rows) {
  const std::vector<int64_t> own = chunks.tokens_of(rank);
  std::vector<int64_t> out;
  for (int64_t b = 0; b < rows; ++b) {
    for (const int64_t token : own) out.push_back(b * chunks.tokens() + token);
  }
  return out;
}

}  // namespace troupe
