#include "troupe/nn/parts/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include "troupe/ops/jitter.h"

namespace troupe {

at::Tensor dropout(const at::Tensor& x, double p, DropPlace place, const Context& context) {
  if (!context.training || p <= 0) return x;
  at::Tensor factor;
  {
    const at::NoGradGuard no_grad;
    // Jitter of ones with epsilon 1/2 is 1/2 + U. Its streams are those of layers that no model
    // has.
    const int64_t stream = context.layer + ((static_cast<int64_t>(place) + 1) << 32);
    const NoisePlace key = {
        {context.seed, context.step, stream}, context.first_token, context.index_T};
    const at::Tensor u = jitter(at::ones({x.numel() / x.size(-1), x.size(-1)},
                                         x.options().dtype(at::kFloat).requires_grad(false)),
                                0.5, key);
    factor = ((u >= 0.5 + p).to(x.scalar_type()) / (1 - p)).view(x.sizes());
  }
  return x * factor;
}

}  // namespace troupe
