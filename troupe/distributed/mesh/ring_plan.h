// Ring attention's rounds on a rank of a context group: whose keys come in each, which of its own
// it sends, and what its queries see of them. Arithmetic on whole rows, which every rank knows, so
// that no counts are exchanged.
//
// In round i rank r has keys of rank r - i, and sends its own to rank r + i (modulo the ranks).
// These come from their owner, not from a neighbor that passes them on: it leaves out what no query
// of the receiver sees, which windows and documents make most of.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/distributed/mesh/query_parts.h"
#include "troupe/ops/attention/attention_segment.h"

namespace troupe {

struct RingRound {
  int64_t from = 0, to = 0;        // ranks: whose keys these are, and who gets own ones
  int64_t keys = 0;                // rows that come; in round 0 those of all own tokens
  std::vector<int64_t> sent = {};  // own tokens whose rows go to `to`, ascending; in round 0 none
  // One pass for each run of `from`'s tokens: there a query is in one segment at most.
  std::vector<std::vector<AttentionSegment>> passes = {};
};

// A round for each rank, that of own keys first. Own token i of row b is number b own_tokens() + i.
// window 0: none.
std::vector<RingRound> ring_plan(const TokenChunks& chunks, int64_t rank, const WholeRows& whole,
                                 int64_t window);

}  // namespace troupe
