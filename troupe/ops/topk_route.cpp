#include "troupe/ops/topk_route.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/topk_route/topk_route.h"
#include "troupe/ops/define.h"
#include "troupe/ops/run.h"
#include "troupe/ops/view.h"

namespace troupe {
namespace {

using Out = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Out topk_route_meta(const at::Tensor& logits_TE, int64_t K, bool /*renormalize*/) {
  check_sizes(logits_TE, {-1, -1}, "topk_route: logits");
  const auto options = logits_TE.options();
  return {at::empty({logits_TE.size(0), K}, options.dtype(at::kInt)),
          at::empty({logits_TE.size(0), K}, options.dtype(at::kFloat)),
          at::empty({logits_TE.size(1)}, options.dtype(at::kInt))};
}

Out topk_route_device(const at::Tensor& logits_TE, int64_t K, bool renormalize) {
  Out out = topk_route_meta(logits_TE, K, renormalize);
  const at::Tensor logits = rowwise(logits_TE);
  const TopkRoute args{.logits = view(logits, "topk_route: logits"),
                       .ids = mat<int32_t>(std::get<0>(out), "ids"),
                       .weights = mat<float>(std::get<1>(out), "weights"),
                       .counts = ptr<int32_t>(std::get<2>(out), "counts"),
                       .renormalize = renormalize};
  run(logits.device(), args, topk_route_cpu, &CudaKernels::topk_route);
  return out;
}

}  // namespace

Out topk_route(const at::Tensor& logits_TE, int64_t K, bool renormalize) {
  static const auto op = raw_op<decltype(topk_route_device)>("troupe::topk_route");
  return op(logits_TE, K, renormalize);
}

void define_topk_route(torch::Library& m) {
  define(m, "topk_route(Tensor logits, int k, bool renormalize) -> (Tensor, Tensor, Tensor)",
         topk_route_device, topk_route_meta);
}

}  // namespace troupe
