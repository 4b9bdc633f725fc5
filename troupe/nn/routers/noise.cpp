#include "troupe/nn/routers/noise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <string>

#include "troupe/core/rng.h"
#include "troupe/ops/run.h"

namespace troupe {

at::Tensor uniform_noise(std::string_view purpose, int64_t tokens, int64_t columns,
                         const Context& context, c10::Device device) {
  const std::string name = std::string(purpose) + '.' + std::to_string(context.layer) + '.' +
                           std::to_string(context.step);
  const Rng rng(context.seed, stream_of(name));
  at::Tensor out = at::empty({tokens, columns}, at::kFloat);
  auto* data = out.mutable_data_ptr<float>();
  torch_pool()(tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const auto token = static_cast<uint64_t>(context.first_token + t);
      for (int64_t c = 0; c < columns; ++c) {
        data[t * columns + c] = rng.uniform(token, static_cast<uint32_t>(c));
      }
    }
  });
  return out.to(device);
}

at::Tensor jittered(const at::Tensor& x_TD, double eps, const Context& context) {
  const at::Tensor u =
      uniform_noise("router_jitter", x_TD.size(0), x_TD.size(1), context, x_TD.device());
  const auto wide = x_TD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return x_TD.to(wide) * (u.to(wide) * (2 * eps) + (1 - eps));
}

}  // namespace troupe
