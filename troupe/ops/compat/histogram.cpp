#include "troupe/ops/compat/histogram.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/histogram/histogram.h"
#include "troupe/ops/compat/int_view.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

at::Tensor histogram_meta(const at::Tensor& x, int64_t bins) {
  TROUPE_CHECK(bins >= 1, "histogram: bins must be at least 1; it is", bins);
  const auto options = x.options().dtype(at::kInt);
  return x.dim() == 2 ? at::empty_symint({x.sym_size(0), bins}, options)
                      : at::empty_symint({bins}, options);
}

at::Tensor histogram_device(const at::Tensor& x_in, int64_t bins) {
  at::Tensor out = histogram_meta(x_in, bins);
  const at::Tensor x = x_in.contiguous();
  const Histogram args{
      .x = int_view(x, "histogram: x"), .bins = bins, .out = ptr<int32_t>(out, "histogram: out")};
  run(x.device(), args, histogram_cpu, &CudaKernels::histogram);
  return out;
}

}  // namespace

at::Tensor histogram(const at::Tensor& x, int64_t bins) {
  static const auto op = raw_op<decltype(histogram_device)>("troupe::histogram");
  return op(x, bins);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "histogram(Tensor x, int bins) -> Tensor", histogram_device, histogram_meta);
}

}  // namespace troupe
