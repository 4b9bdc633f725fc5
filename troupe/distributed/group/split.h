// Row counts to and from each rank of a group, and row exchanges by these counts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "troupe/distributed/group/process_group.h"

namespace troupe {

struct RankSplit {
  std::vector<int64_t> to, from;
  int64_t sent() const { return std::accumulate(to.begin(), to.end(), int64_t{0}); }
  int64_t received() const { return std::accumulate(from.begin(), from.end(), int64_t{0}); }
};

// Starts to send rows [sent(), X]; `out` [received(), X] is filled after the wait.
Pending send_rows(ProcessGroup& group, const RankSplit& split, const at::Tensor& rows,
                  at::Tensor& out);
// Starts to send rows [received(), X] back to their senders; `out` [sent(), X], in the order in
// which they left, is filled after the wait.
Pending return_rows(ProcessGroup& group, const RankSplit& split, const at::Tensor& rows,
                    at::Tensor& out);
// The same, waited for.
at::Tensor returned_rows(ProcessGroup& group, const RankSplit& split, const at::Tensor& rows);
// All-to-all of one line [X] a rank, such as counts: [ranks, X] in and out.
at::Tensor exchange_counts(ProcessGroup& group, const at::Tensor& lines);

}  // namespace troupe
