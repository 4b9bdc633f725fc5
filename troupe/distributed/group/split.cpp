#include "troupe/distributed/group/split.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace troupe {

Pending send_rows(ProcessGroup& group, const RankSplit& split, const at::Tensor& rows,
                  at::Tensor& out) {
  out = at::empty({split.received(), rows.size(1)}, rows.options());
  return group.all_to_all(out, rows, split.from, split.to);
}

Pending return_rows(ProcessGroup& group, const RankSplit& split, const at::Tensor& rows,
                    at::Tensor& out) {
  out = at::empty({split.sent(), rows.size(1)}, rows.options());
  return group.all_to_all(out, rows.contiguous(), split.to, split.from);
}

at::Tensor returned_rows(ProcessGroup& group, const RankSplit& split, const at::Tensor& rows) {
  at::Tensor out;
  return_rows(group, split, rows, out).wait();
  return out;
}

at::Tensor exchange_counts(ProcessGroup& group, const at::Tensor& lines) {
  const at::Tensor in = lines.contiguous(), out = at::empty_like(in);
  const std::vector<int64_t> one(static_cast<size_t>(group.size()), 1);
  group.all_to_all(out, in, one, one).wait();
  return out;
}

}  // namespace troupe
