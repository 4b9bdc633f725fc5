#include "troupe/ops/compat/cumsum.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/cumsum/cumsum.h"
#include "troupe/ops/compat/int_view.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"

namespace troupe {
namespace {

at::Tensor cumsum_meta(const at::Tensor& x, int64_t dim) {
  TROUPE_CHECK((x.dim() == 1 || x.dim() == 2) && -x.dim() <= dim && dim < x.dim(), "cumsum: dim",
               dim, "of a tensor of sizes", x.sym_sizes());
  return at::empty_symint(x.sym_sizes(), x.options());
}

// Along the last dimension; another one is turned to be the last and back.
at::Tensor cumsum_of(const at::Tensor& x, int64_t dim, bool exclusive) {
  at::Tensor out = cumsum_meta(x, dim);
  const bool turned = x.dim() == 2 && (dim == 0 || dim == -2);
  const at::Tensor rows = (turned ? x.t() : x).contiguous();
  at::Tensor sums = turned ? at::empty(rows.sizes(), rows.options()) : out;
  Cumsum args{.x = int_view(rows, "cumsum: x"),
              .exclusive = exclusive,
              .out = mut_int_view(sums, "cumsum: out")};
  const at::Tensor workspace = at::empty({workspace_bytes(args)}, x.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(x.device(), args, cumsum_cpu, &CudaKernels::cumsum);
  return turned ? out.copy_(sums.t()) : out;
}

at::Tensor inclusive_device(const at::Tensor& x, int64_t dim) {
  return cumsum_of(x, dim, /*exclusive=*/false);
}

at::Tensor exclusive_device(const at::Tensor& x, int64_t dim) {
  return cumsum_of(x, dim, /*exclusive=*/true);
}

}  // namespace

at::Tensor inclusive_cumsum(const at::Tensor& x, int64_t dim) {
  static const auto op = raw_op<decltype(inclusive_device)>("troupe::inclusive_cumsum");
  return op(x, dim);
}

at::Tensor exclusive_cumsum(const at::Tensor& x, int64_t dim) {
  static const auto op = raw_op<decltype(exclusive_device)>("troupe::exclusive_cumsum");
  return op(x, dim);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "inclusive_cumsum(Tensor x, int dim) -> Tensor", inclusive_device, cumsum_meta);
  define(m, "exclusive_cumsum(Tensor x, int dim) -> Tensor", exclusive_device, cumsum_meta);
}

}  // namespace troupe
