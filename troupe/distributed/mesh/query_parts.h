// What the queries of a rank of a context group see: arithmetic on whole rows, below the plans of
// how keys travel (distributed/mesh/key_plan.h, distributed/mesh/ring_plan.h).
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/distributed/mesh/token_chunks.h"

namespace troupe {

// A microbatch before it is cut: B rows of S tokens.
struct WholeRows {
  int64_t rows = 0;
  // [B S]: where the number changes in a row, a document begins; empty: each row is one.
  std::vector<int32_t> documents = {};
};

// Queries [from, to) of a row, all of one document and own, and the first key that they see: that
// of the document's first token, or with a window the first that query `from` sees.
struct QueryPart {
  int64_t row, from, to, key;
  int64_t own;  // number of the first among own tokens
};

// Tokens [from, to) of a row.
struct TokenSpan {
  int64_t row, from, to;
};

// In the order of rows and tokens. Within a row no part's first key is before that of the one
// before. window 0: none.
std::vector<QueryPart> query_parts(const TokenChunks& chunks, int64_t rank, const WholeRows& whole,
                                   int64_t window);

// The keys of all parts, in the same order; no two spans touch.
std::vector<TokenSpan> keys_of(const std::vector<QueryPart>& parts);

}  // namespace troupe
