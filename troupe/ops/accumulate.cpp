#include "troupe/ops/accumulate.h"

#include "troupe/kernels/accumulate/accumulate.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

void accumulate_meta(const at::Tensor& sum, const at::Tensor& x, bool /*add*/) {
  check_dtype(sum, at::kFloat, "accumulate_: sum");
  TROUPE_CHECK(sum.is_contiguous(), "accumulate_: sum must be contiguous; its sizes are",
               sum.sym_sizes(), "and its strides", sum.sym_strides());
  TROUPE_CHECK(dtype_of_tensor(x, "accumulate_: x") != Dtype::kF64,
               "accumulate_: x must be f32, bf16 or f16; it is", x.scalar_type());
  TROUPE_CHECK(x.sym_sizes() == sum.sym_sizes(), "accumulate_: x must have the sizes of sum,",
               sum.sym_sizes(), "; it has", x.sym_sizes());
  check_same_device(x, sum, "accumulate_: x");
}

void accumulate_device(const at::Tensor& sum, const at::Tensor& x, bool add) {
  accumulate_meta(sum, x, add);
  const at::Tensor flat = x.contiguous();
  const int64_t n = flat.numel();
  const Accumulate args{
      .x = {flat.const_data_ptr(), dtype_of_tensor(flat, "accumulate_: x"), 1, n, n},
      .sum = sum.mutable_data_ptr<float>(),
      .add = add};
  run(sum.device(), args, accumulate_cpu, &CudaKernels::accumulate);
}

}  // namespace

void accumulate_(const at::Tensor& sum, const at::Tensor& x, bool add) {
  static const auto op = raw_op<decltype(accumulate_device)>("troupe::accumulate_");
  op(sum, x, add);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "accumulate_(Tensor(a!) sum, Tensor x, bool add) -> ()", accumulate_device,
         accumulate_meta);
}

}  // namespace troupe
