#include "troupe/distributed/mesh/query_parts.h"

#include <algorithm>

#include "troupe/core/check.h"

namespace troupe {
namespace {

class DocumentRows {
 public:
  DocumentRows(const TokenChunks& chunks, const WholeRows& whole)
      : S_(chunks.tokens()), documents_(whole.documents) {
    TROUPE_CHECK(documents_.empty() || std::ssize(documents_) == whole.rows * S_, "documents of",
                 documents_.size(), "tokens, in", whole.rows, "rows of", S_);
  }
  bool begins(int64_t row, int64_t token) const {
    if (token == 0) return true;
    return !documents_.empty() && of(row, token) != of(row, token - 1);
  }

 private:
  int32_t of(int64_t row, int64_t token) const {
    return documents_[static_cast<size_t>(row * S_ + token)];
  }
  int64_t S_;
  const std::vector<int32_t>& documents_;
};

}  // namespace

std::vector<QueryPart> query_parts(const TokenChunks& chunks, int64_t rank, const WholeRows& whole,
                                   int64_t window) {
  const DocumentRows rows(chunks, whole);
  std::vector<QueryPart> out;
  for (int64_t b = 0; b < whole.rows; ++b) {
    int64_t own = b * chunks.own_tokens(), document = 0, token = 0;
    for (const TokenRun& run : chunks.runs_of(rank)) {
      for (; token < run.from; ++token) {
        if (rows.begins(b, token)) document = token;
      }
      for (; token < run.end(); ++token) {
        const bool begins = rows.begins(b, token);
        if (begins) document = token;
        if (begins || token == run.from) {
          const int64_t seen = window > 0 ? token - window + 1 : 0;
          out.push_back({b, token, token, std::max(document, seen), own});
        }
        ++out.back().to;
        ++own;
      }
    }
  }
  return out;
}

std::vector<TokenSpan> keys_of(const std::vector<QueryPart>& parts) {
  std::vector<TokenSpan> out;
  for (const QueryPart& part : parts) {
    if (!out.empty() && out.back().row == part.row && part.key <= out.back().to) {
      out.back().to = part.to;
    } else {
      out.push_back({part.row, part.key, part.to});
    }
  }
  return out;
}

}  // namespace troupe
