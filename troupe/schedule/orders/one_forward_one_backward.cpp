#include <algorithm>

#include "troupe/schedule/orders/orders.h"

namespace troupe {
namespace {

// `back`: the second stage comes first.
std::vector<StageStep> in_turns(const Pipeline& pipeline, int rank, bool back) {
  const Kind kind = back ? Kind::kBackward : Kind::kForward;
  const int up = pipeline.stages - 1 - rank, first = back ? up : rank, second = back ? rank : up;
  const int all = pipeline.microbatches, ahead = std::min(all, 2 * (pipeline.ranks - rank) - 1);
  std::vector<StageStep> out;
  for (int m = 0; m < ahead; ++m) out.push_back({kind, first, m});
  for (int m = 0; m < all; ++m) {
    out.push_back({kind, second, m});
    if (m + ahead < all) out.push_back({kind, first, m + ahead});
  }
  return out;
}

std::vector<StageStep> grouped(const Pipeline& pipeline, int rank, bool back) {
  if (pipeline.vee) return in_turns(pipeline, rank, back);
  const int ranks = pipeline.ranks, v = pipeline.stages / ranks;
  const int group = v == 1 ? 1 : ranks, groups = (pipeline.microbatches + group - 1) / group;
  std::vector<StageStep> out;
  for (int g = 0; g < groups; ++g) {
    for (int own = 0; own < v; ++own) {
      const int stage = (back ? v - 1 - own : own) * ranks + rank;
      for (int i = 0; i < group; ++i) {
        out.push_back({back ? Kind::kBackward : Kind::kForward, stage, g * group + i});
      }
    }
  }
  return out;
}

}  // namespace

std::vector<StageStep> grouped_forwards(const Pipeline& pipeline, int rank) {
  return grouped(pipeline, rank, false);
}

std::vector<StageStep> grouped_backwards(const Pipeline& pipeline, int rank) {
  return grouped(pipeline, rank, true);
}

std::vector<StageStep> one_forward_one_backward(const Pipeline& pipeline, int rank) {
  const std::vector<StageStep> forwards = grouped_forwards(pipeline, rank),
                               backwards = grouped_backwards(pipeline, rank);
  const int later = pipeline.ranks - 1 - rank, v = pipeline.stages / pipeline.ranks;
  const size_t all = forwards.size();
  const size_t ahead =
      std::min(all, static_cast<size_t>(v == 1 ? later : 2 * later + (v - 1) * pipeline.ranks));
  std::vector<StageStep> out;
  for (size_t k = 0; k < all + ahead; ++k) {
    if (k < all && forwards[k].microbatch < pipeline.microbatches) out.push_back(forwards[k]);
    if (k >= ahead && backwards[k - ahead].microbatch < pipeline.microbatches) {
      out.push_back(backwards[k - ahead]);
    }
  }
  return out;
}

}  // namespace troupe
