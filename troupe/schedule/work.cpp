#include "troupe/schedule/work.h"

#include "troupe/core/check.h"

namespace troupe {

void validate(const StepWork& work) {
  TROUPE_CHECK(work.chunks > 0 && work.microbatches > 0 && work.ranks > 0 && work.replicas > 0,
               "chunks", work.chunks, "microbatches", work.microbatches, "ranks", work.ranks,
               "replicas", work.replicas);
  std::vector<bool> seen(static_cast<size_t>(work.chunks), false);
  for (const auto& [a, b] : work.tied) {
    TROUPE_CHECK(0 <= a && a < b && b < work.chunks, "chunks", a, "and", b, "of", work.chunks,
                 "cannot be tied");
    TROUPE_CHECK(!seen[b], "chunk", b, "is tied twice");
    seen[b] = true;
  }
}

std::vector<int> owners(const StepWork& work) {
  std::vector<int> out;
  for (int c = 0; c < work.chunks; ++c) {
    out.push_back(c);
    for (const auto& [a, b] : work.tied) {
      if (b == c) out.back() = out[a];
    }
  }
  return out;
}

}  // namespace troupe
