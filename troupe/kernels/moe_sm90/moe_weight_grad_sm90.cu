// The gradients of the weights.
#include "troupe/kernels/moe_sm90/weight_launch.cuh"

namespace troupe {
namespace {

template <bool kTransposed>
void weight_grad(const sm90::WeightLaunch& x) {
  // No expert can have a second segment: the sums are whole.
  const bool cut = x.segments.rows > 0 && x.plan.rows > x.segments.rows;
  cut ? sm90::weight_grad_in_segments(x, kTransposed) : sm90::weight_grad<kTransposed, false>(x);
}

}  // namespace

void moe_down_grad_sm90_cuda(const MoeDownGradSm90& a, cudaStream_t stream) {
  validate(a);
  weight_grad<false>(
      {a.plan, a.grad_out, a.a, a.grad_w2, a.accumulate, a.segments, a.waves, stream});
}

void moe_up_grad_sm90_cuda(const MoeUpGradSm90& a, cudaStream_t stream) {
  validate(a);
  weight_grad<true>({a.plan, a.x, a.grad_h, a.grad_w1, a.accumulate, a.segments, a.waves, stream});
}

void weight_product_sm90_cuda(const WeightProductSm90& a, cudaStream_t stream) {
  validate(a);
  const PlanRef plan{.experts = a.experts,
                     .rows = a.gather_b ? a.a.rows : a.b.rows,
                     .expert_offset = a.expert_offset,
                     .row_src = a.row_src};
  if (a.gather_b) {
    weight_grad<true>({plan, a.b, a.a, a.c, a.accumulate, a.segments, a.waves, stream});
  } else {
    weight_grad<false>({plan, a.a, a.b, a.c, a.accumulate, a.segments, a.waves, stream});
  }
}

}  // namespace troupe
