// Which tokens of a microbatch's rows go to which context rank (rules CX1, CX2), so that attention
// takes all of them as long: arithmetic on whole rows, alike on every rank.
//
//   zigzag      TokenChunks::zigzag: even where each row is one document
//   documents   8 R chunks of S / (8 R) tokens. The chunk with the most pairs of a query and a key
//               that it sees, in all rows together, goes first: to the rank with the fewest pairs
//               so far of those with fewer than 8 chunks. Windows do not count. A document within
//               one chunk of zigzag costs its rank all of it.
//
// `documents` is zigzag where rows do not divide by 8 R, and where it would not take a thirtieth
// off the pairs of the rank with most: more and shorter runs of tokens cost something too.
#pragma once

#include <cstdint>

#include "troupe/distributed/mesh/query_parts.h"
#include "troupe/distributed/mesh/token_chunks.h"

namespace troupe {

enum class Dealing : uint8_t { kZigzag, kDocuments };

// Which part of each row is a rank's.
struct RowCut {
  int64_t ranks = 1, rank = 0;
  int64_t depth = 0;  // MTP modules: how many tokens ahead are read from whole rows
  Dealing dealing = Dealing::kZigzag;
};

TokenChunks dealt(Dealing dealing, int64_t ranks, int64_t tokens, const WholeRows& whole);

}  // namespace troupe
