#include "troupe/ops/sinkhorn.h"

#include <ATen/ops/empty.h>

#include <tuple>

#include "troupe/kernels/sinkhorn/sinkhorn.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using SinkhornTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Mask = std::optional<at::Tensor>;

SinkhornTensors sinkhorn_meta(const at::Tensor& logits_TE, const Mask& valid_T, int64_t k,
                              double /*tolerance*/, int64_t /*max_iterations*/) {
  check_sizes(logits_TE, {-1, -1}, "sinkhorn: logits");
  const c10::SymInt T = logits_TE.sym_size(0);
  TROUPE_CHECK(k >= 1, "sinkhorn: k is", k);
  if (valid_T.has_value()) {
    check_sizes(*valid_T, {T}, "sinkhorn: valid");
    check_same_device(*valid_T, logits_TE, "sinkhorn: valid");
  }
  const auto ints = logits_TE.options().dtype(at::kInt).requires_grad(false);
  const bool wide = logits_TE.scalar_type() == at::kDouble;
  const auto floats = ints.dtype(wide ? at::kDouble : at::kFloat);
  return {at::empty_symint({T, k}, ints), at::empty_symint({1, T}, floats),
          at::empty_symint({1, logits_TE.sym_size(1)}, floats), at::empty_symint({}, ints)};
}

SinkhornTensors sinkhorn_device(const at::Tensor& logits_TE, const Mask& valid_T, int64_t k,
                                double tolerance, int64_t max_iterations) {
  SinkhornTensors out = sinkhorn_meta(logits_TE, valid_T, k, tolerance, max_iterations);
  const at::Tensor logits = rowwise(logits_TE);
  const Mask valid = valid_T.has_value() ? Mask(valid_T->contiguous()) : Mask();
  Sinkhorn args{.logits = view(logits, "sinkhorn: logits"),
                .choices = k,
                .valid = ptr_or_null<const uint8_t>(valid, "sinkhorn: valid"),
                .tolerance = static_cast<float>(tolerance),
                .max_iterations = max_iterations,
                .ids = ptr<int32_t>(std::get<0>(out), "sinkhorn: ids"),
                .u = mut_view(std::get<1>(out), "sinkhorn: u"),
                .v = mut_view(std::get<2>(out), "sinkhorn: v"),
                .iterations = ptr<int32_t>(std::get<3>(out), "sinkhorn: iterations")};
  const at::Tensor workspace =
      at::empty({workspace_bytes(args)}, std::get<0>(out).options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(logits.device(), args, sinkhorn_cpu, &CudaKernels::sinkhorn);
  return out;
}

}  // namespace

SinkhornResult sinkhorn(const at::Tensor& logits_TE, const Mask& valid_T,
                        const SinkhornOptions& o) {
  static const auto op = raw_op<decltype(sinkhorn_device)>("troupe::sinkhorn");
  const auto [ids, u, v, iterations] =
      op(logits_TE, valid_T, o.top_k, o.tolerance, o.max_iterations);
  return {ids, u[0], v[0], iterations};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m,
         "sinkhorn(Tensor logits, Tensor? valid, int k, float tolerance, int max_iterations) -> "
         "(Tensor ids, Tensor u, Tensor v, Tensor iterations)",
         sinkhorn_device, sinkhorn_meta);
}

}  // namespace troupe
