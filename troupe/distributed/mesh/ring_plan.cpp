#include "troupe/distributed/mesh/ring_plan.h"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

// Tokens of a run in a row that queries of another rank see, and where their rows are in what
// comes.
struct ComingSpan {
  int64_t row, from, to;
  size_t run;
  int64_t first;
};

// The rows that come from rank `from` for these queries: by row, run and token.
std::vector<ComingSpan> coming(const TokenChunks& chunks, int64_t from,
                               const std::vector<TokenSpan>& keys) {
  const std::vector<TokenRun>& runs = chunks.runs_of(from);
  std::vector<ComingSpan> out;
  int64_t next = 0;
  for (auto span = keys.begin(); span != keys.end();) {
    const auto end =
        std::find_if(span, keys.end(), [&](const TokenSpan& k) { return k.row != span->row; });
    for (size_t run = 0; run < runs.size(); ++run) {
      for (auto k = span; k != end; ++k) {
        const int64_t first = std::max(k->from, runs[run].from);
        const int64_t last = std::min(k->to, runs[run].end());
        if (first >= last) continue;
        out.push_back({k->row, first, last, run, next});
        next += last - first;
      }
    }
    span = end;
  }
  return out;
}

// All own tokens, as if they came.
std::vector<ComingSpan> own_spans(const TokenChunks& chunks, int64_t rank, int64_t rows) {
  const std::vector<TokenRun>& runs = chunks.runs_of(rank);
  std::vector<ComingSpan> out;
  int64_t next = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (size_t run = 0; run < runs.size(); ++run) {
      out.push_back({row, runs[run].from, runs[run].end(), run, next});
      next += runs[run].count;
    }
  }
  return out;
}

int64_t rows_of(const std::vector<ComingSpan>& spans) {
  return spans.empty() ? 0 : spans.back().first + spans.back().to - spans.back().from;
}

std::vector<std::vector<AttentionSegment>> passes_of(const std::vector<QueryPart>& parts,
                                                     const std::vector<ComingSpan>& spans,
                                                     size_t runs) {
  std::vector<std::vector<AttentionSegment>> out(runs);
  for (const ComingSpan& s : spans) {
    // Within a row neither a part's first key nor its end is before that of the part before.
    auto part = std::ranges::partition_point(parts, [&](const QueryPart& p) {
      return std::pair(p.row, p.to) <= std::pair(s.row, s.from);
    });
    for (; part != parts.end() && part->row == s.row && part->key < s.to; ++part) {
      const int64_t from = std::max(part->key, s.from), to = std::min(part->to, s.to);
      out[s.run].push_back({part->own, part->to - part->from, s.first + from - s.from,
                            part->from - from, to - from});
    }
  }
  std::erase_if(out, [](const auto& segments) { return segments.empty(); });
  return out;
}

}  // namespace

std::vector<RingRound> ring_plan(const TokenChunks& chunks, int64_t rank, const WholeRows& whole,
                                 int64_t window) {
  const int64_t ranks = chunks.ranks(), n = chunks.own_tokens();
  const std::vector<QueryPart> parts = query_parts(chunks, rank, whole, window);
  const std::vector<TokenSpan> keys = keys_of(parts);
  std::vector<RingRound> out;
  for (int64_t i = 0; i < ranks; ++i) {
    RingRound round{.from = (rank + ranks - i) % ranks, .to = (rank + i) % ranks};
    const std::vector<ComingSpan> spans =
        i == 0 ? own_spans(chunks, rank, whole.rows) : coming(chunks, round.from, keys);
    round.keys = rows_of(spans);
    round.passes = passes_of(parts, spans, chunks.runs_of(round.from).size());
    if (i > 0) {
      const auto theirs = keys_of(query_parts(chunks, round.to, whole, window));
      for (const ComingSpan& s : coming(chunks, rank, theirs)) {
        for (int64_t t = s.from; t < s.to; ++t) {
          round.sent.push_back(s.row * n + chunks.place_of(t).own);
        }
      }
    }
    out.push_back(std::move(round));
  }
  return out;
}

}  // namespace troupe
