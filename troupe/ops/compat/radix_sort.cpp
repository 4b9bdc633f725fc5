#include "troupe/ops/compat/radix_sort.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/radix_sort/radix_sort.h"
#include "troupe/ops/compat/int_view.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Sorted = std::tuple<at::Tensor, at::Tensor>;

Sorted sort_meta(const at::Tensor& x, std::optional<int64_t> /*end_bit*/) {
  check_sizes(x, {-1}, "sort: x");
  return {at::empty_symint(x.sym_sizes(), x.options()),
          at::empty_symint(x.sym_sizes(), x.options().dtype(at::kInt))};
}

Sorted sort_device(const at::Tensor& x_in, std::optional<int64_t> end_bit) {
  Sorted out = sort_meta(x_in, end_bit);
  const at::Tensor x = x_in.contiguous();
  RadixSort args{.x = int_view(x, "sort: x"),
                 .end_bit = static_cast<int>(end_bit.value_or(8 * x.element_size())),
                 .out = mut_int_view(std::get<0>(out), "sort: values"),
                 .indices = ptr<int32_t>(std::get<1>(out), "sort: indices")};
  const at::Tensor workspace = at::empty({workspace_bytes(args)}, x.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(x.device(), args, radix_sort_cpu, &CudaKernels::radix_sort);
  return out;
}

}  // namespace

Sorted radix_sort(const at::Tensor& x, std::optional<int64_t> end_bit) {
  static const auto op = raw_op<decltype(sort_device)>("troupe::sort");
  return op(x, end_bit);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "sort(Tensor x, int? end_bit=None) -> (Tensor values, Tensor indices)", sort_device,
         sort_meta);
}

}  // namespace troupe
