// How many of something go to each rank of a group and come from each, and rows on these ways.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "troupe/distributed/group/group.h"

namespace troupe {

struct RankSplit {
  std::vector<int64_t> to, from;
  int64_t sent() const { return std::accumulate(to.begin(), to.end(), int64_t{0}); }
  int64_t received() const { return std::accumulate(from.begin(), from.end(), int64_t{0}); }
};

// Starts to send rows [sent(), X]; `out` [received(), X] is there after the wait.
Pending send_rows(RankGroup& group, const RankSplit& split, const at::Tensor& rows,
                  at::Tensor& out);
// Rows [received(), X] to where their senders are: [sent(), X], in the order in which they went.
at::Tensor returned_rows(RankGroup& group, const RankSplit& split, const at::Tensor& rows);
// A line [ranks, X] to each rank, and one from each.
at::Tensor told_each(RankGroup& group, const at::Tensor& lines);

}  // namespace troupe
