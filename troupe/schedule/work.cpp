#include "troupe/schedule/work.h"

#include "troupe/core/check.h"

namespace troupe {
namespace {

void validate_ties(const StepWork& work) {
  std::vector<bool> seen(static_cast<size_t>(work.chunks), false);
  for (const auto& [a, b] : work.tied) {
    TROUPE_CHECK(0 <= a && a < b && b < work.chunks, "chunks", a, "and", b, "of", work.chunks,
                 "cannot be tied");
    TROUPE_CHECK(!seen[b], "chunk", b, "is tied twice");
    seen[b] = true;
  }
}

void validate_stages(const StepWork& work) {
  if (work.stages.empty()) {
    TROUPE_CHECK(work.stage_ranks.empty(), "ranks of", work.stage_ranks.size(),
                 "stages, and no chunk has a stage");
    TROUPE_CHECK(work.ranks == 1, "chunks on", work.ranks, "ranks, and no chunk has a stage");
    return;
  }
  TROUPE_CHECK(static_cast<int>(work.stages.size()) == work.chunks, "stages of", work.stages.size(),
               "chunks; there are", work.chunks);
  const int stages = static_cast<int>(work.stage_ranks.size());
  for (size_t s = 0; s < work.stage_ranks.size(); ++s) {
    TROUPE_CHECK(0 <= work.stage_ranks[s] && work.stage_ranks[s] < work.ranks, "stage", s,
                 "on rank", work.stage_ranks[s], "of", work.ranks);
  }
  int before = 0;
  for (int c = 0; c < work.chunks; ++c) {
    const int stage = work.stages[static_cast<size_t>(c)];
    TROUPE_CHECK(0 <= stage && stage < stages, "chunk", c, "is in stage", stage, "of", stages);
    TROUPE_CHECK(before <= stage, "chunk", c, "is in stage", stage, "and the one before it in",
                 before);
    before = stage;
  }
}

}  // namespace

void validate(const StepWork& work) {
  TROUPE_CHECK(work.chunks > 0 && work.microbatches > 0 && work.ranks > 0 && work.replicas > 0,
               "chunks", work.chunks, "microbatches", work.microbatches, "ranks", work.ranks,
               "replicas", work.replicas);
  TROUPE_CHECK(work.depth > 0, "depth", work.depth);
  TROUPE_CHECK(work.training || !work.snapshot, "a snapshot of a step without training");
  validate_ties(work);
  validate_stages(work);
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

std::vector<int> chunk_ranks(const StepWork& work) {
  std::vector<int> out(static_cast<size_t>(work.chunks), 0);
  for (size_t c = 0; c < work.stages.size(); ++c) {
    out[c] = work.stage_ranks[static_cast<size_t>(work.stages[c])];
  }
  return out;
}

std::vector<bool> owners_on_several_ranks(const StepWork& work) {
  const std::vector<int> owner = owners(work), rank = chunk_ranks(work);
  std::vector<bool> out(owner.size(), false);
  for (size_t c = 0; c < owner.size(); ++c) {
    const auto first = static_cast<size_t>(owner[c]);
    if (rank[c] != rank[first]) out[first] = true;
  }
  return out;
}

}  // namespace troupe
