#include "troupe/ops/compat/replicate.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/replicate/replicate.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

at::Tensor replicate_meta(const at::Tensor& x, const at::Tensor& bins, c10::SymInt num_outputs) {
  check_sizes(x, {-1, -1}, "replicate: x");
  check_sizes(bins, {x.sym_size(1)}, "replicate: bins");
  check_same_device(bins, x, "replicate: bins");
  return at::empty_symint({x.sym_size(0), num_outputs}, x.options());
}

at::Tensor replicate_device(const at::Tensor& x_in, const at::Tensor& bins,
                            c10::SymInt num_outputs) {
  at::Tensor out = replicate_meta(x_in, bins, num_outputs);
  const at::Tensor x = x_in.contiguous();
  const Replicate args{.x = x.const_data_ptr(),
                       .element_bytes = static_cast<int64_t>(x.element_size()),
                       .rows = x.size(0),
                       .experts = x.size(1),
                       .bins = ptr<const int32_t>(bins, "replicate: bins"),
                       .out = out.mutable_data_ptr(),
                       .outputs = num_outputs.guard_int(__FILE__, __LINE__)};
  run(x.device(), args, replicate_cpu, &CudaKernels::replicate);
  return out;
}

at::Tensor replicate_backward_meta(const at::Tensor& grad_out, const at::Tensor& bins) {
  check_sizes(grad_out, {-1, -1}, "replicate_backward: gradient");
  check_sizes(bins, {-1}, "replicate_backward: bins");
  check_same_device(bins, grad_out, "replicate_backward: bins");
  return at::empty_symint({grad_out.sym_size(0), bins.sym_size(0)}, grad_out.options());
}

at::Tensor replicate_backward_device(const at::Tensor& grad_out, const at::Tensor& bins) {
  at::Tensor out = replicate_backward_meta(grad_out, bins);
  const at::Tensor grad = rowwise(grad_out);
  const ReplicateBackward args{.grad_out = view(grad, "replicate_backward: gradient"),
                               .bins = ptr<const int32_t>(bins, "replicate_backward: bins"),
                               .grad_x = mut_view(out, "replicate_backward: out")};
  run(grad.device(), args, replicate_backward_cpu, &CudaKernels::replicate_backward);
  return out;
}

at::Tensor replicate_autograd(const at::Tensor& x, const at::Tensor& bins,
                              c10::SymInt num_outputs) {
  static const auto op = raw_op<decltype(replicate_device)>("troupe::replicate");
  at::Tensor out = op(x, bins, num_outputs);
  record({.name = "replicate",
          .inputs = {x},
          .outputs = {out},
          .saved = {bins},
          .backward = [](const Gradients& g) -> TensorList {
            static const auto back =
                raw_op<decltype(replicate_backward_device)>("troupe::replicate_backward");
            return {back(g.outputs[0], g.saved[0])};
          }});
  return out;
}

}  // namespace

at::Tensor replicate(const at::Tensor& x, const at::Tensor& bins, int64_t num_outputs) {
  return replicate_autograd(x, bins, num_outputs);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "replicate(Tensor x, Tensor bins, SymInt num_outputs) -> Tensor", replicate_device,
         replicate_meta, replicate_autograd);
  define(m, "replicate_backward(Tensor grad, Tensor bins) -> Tensor", replicate_backward_device,
         replicate_backward_meta);
}

}  // namespace troupe
