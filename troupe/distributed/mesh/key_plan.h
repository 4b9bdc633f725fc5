// Which keys of other ranks a rank of a context group needs, and which of its own it sends (rule
// CX6): arithmetic on whole rows, which every rank knows, so that no counts are exchanged.
//
// A segment is one document's part in one run of own tokens. Its keys are those from the document's
// begin on, or with a window from the first that its first query sees, to its last query's own. The
// keys of a rank are the union of its segments', in the order of rows and tokens; so those of a
// segment are one behind the other, and two segments may share some.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/distributed/mesh/query_parts.h"
#include "troupe/distributed/mesh/token_chunks.h"
#include "troupe/ops/attention/attention_segment.h"

namespace troupe {

struct KeyPlan {
  std::vector<AttentionSegment> segments;   // of own tokens' queries and the keys below, ascending
  std::vector<int64_t> from_rows, to_rows;  // rows that come from and go to each rank
  std::vector<int64_t> sent;                // own tokens to send, those for rank 0 first
  std::vector<int64_t> order;  // key p is row order[p] of own tokens' rows and, behind them, those
                               // that came, of rank 0 first: a permutation
};

// Own token i of row b is number b own_tokens() + i. window 0: none.
KeyPlan key_plan(const TokenChunks& chunks, int64_t rank, const WholeRows& whole, int64_t window);

// The place among the B S tokens of each of the rank's own.
std::vector<int64_t> own_places(const TokenChunks& chunks, int64_t rank, int64_t rows);

}  // namespace troupe
