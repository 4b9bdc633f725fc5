#include "troupe/ops/quantile.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/quantile/quantile.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Mask = std::optional<at::Tensor>;

at::Tensor quantile_meta(const at::Tensor& logits_TE, const at::Tensor& beta_E, const Mask& valid_T,
                         int64_t /*k*/) {
  check_sizes(logits_TE, {-1, -1}, "quantile: logits");
  check_sizes(beta_E, {logits_TE.sym_size(1)}, "quantile: beta");
  check_dtype(beta_E, at::kFloat, "quantile: beta");
  check_same_device(beta_E, logits_TE, "quantile: beta");
  if (valid_T.has_value()) {
    check_sizes(*valid_T, {logits_TE.sym_size(0)}, "quantile: valid");
    check_same_device(*valid_T, logits_TE, "quantile: valid");
  }
  return at::empty_symint(beta_E.sym_sizes(), beta_E.options().requires_grad(false));
}

at::Tensor quantile_device(const at::Tensor& logits_TE, const at::Tensor& beta_E,
                           const Mask& valid_T, int64_t k) {
  at::Tensor next = quantile_meta(logits_TE, beta_E, valid_T, k);
  const at::Tensor logits = rowwise(logits_TE), beta = beta_E.contiguous();
  const Mask valid = valid_T.has_value() ? Mask(valid_T->contiguous()) : Mask();
  Quantile args{.logits = view(logits, "quantile: logits"),
                .choices = k,
                .beta = ptr<const float>(beta, "quantile: beta"),
                .valid = ptr_or_null<const uint8_t>(valid, "quantile: valid"),
                .next = ptr<float>(next, "quantile: next")};
  const at::Tensor workspace = at::empty({workspace_bytes(args)}, next.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(logits.device(), args, quantile_cpu, &CudaKernels::quantile);
  return next;
}

}  // namespace

at::Tensor quantile(const at::Tensor& logits_TE, const at::Tensor& beta_E, const Mask& valid_T,
                    int64_t k) {
  static const auto op = raw_op<decltype(quantile_device)>("troupe::quantile");
  return op(logits_TE, beta_E, valid_T, k);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "quantile(Tensor logits, Tensor beta, Tensor? valid, int k) -> Tensor", quantile_device,
         quantile_meta);
}

}  // namespace troupe
