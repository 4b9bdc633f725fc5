#include "troupe/ops/topology.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/topology/topology.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

at::Tensor topology_meta(const at::Tensor& padded_bins, int64_t /*block*/, c10::SymInt block_rows,
                         c10::SymInt block_columns) {
  check_sizes(padded_bins, {-1}, "topology: padded_bins");
  return at::empty_symint({block_rows * block_columns}, padded_bins.options());
}

at::Tensor topology_device(const at::Tensor& padded_bins, int64_t block, c10::SymInt block_rows,
                           c10::SymInt block_columns) {
  at::Tensor out = topology_meta(padded_bins, block, block_rows, block_columns);
  const Topology args{.padded_bins = ptr<const int32_t>(padded_bins, "topology: padded_bins"),
                      .experts = padded_bins.size(0),
                      .block = block,
                      .block_rows = block_rows.guard_int(__FILE__, __LINE__),
                      .block_columns = block_columns.guard_int(__FILE__, __LINE__),
                      .out = ptr<int32_t>(out, "topology: out")};
  run(padded_bins.device(), args, topology_cpu, &CudaKernels::topology);
  return out;
}

}  // namespace

at::Tensor topology(const at::Tensor& padded_bins, const BlockGrid& grid) {
  static const auto op = raw_op<decltype(topology_device)>("troupe::topology");
  return op(padded_bins, grid.block, grid.rows, grid.columns);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(
      m,
      "topology(Tensor padded_bins, int block, SymInt block_rows, SymInt block_columns) -> Tensor",
      topology_device, topology_meta);
}

}  // namespace troupe
