// The gradients of the weights, their sums cut into segments.
#include "troupe/kernels/moe_sm90/weight_launch.cuh"

namespace troupe::sm90 {

void weight_grad_in_segments(const WeightLaunch& x, bool transposed) {
  transposed ? weight_grad<true, true>(x) : weight_grad<false, true>(x);
}

}  // namespace troupe::sm90
