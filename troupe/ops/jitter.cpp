#include "troupe/ops/jitter.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <optional>
#include <string>
#include <vector>

#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

// In the schemas the seed's 64 bits as they are.
int64_t bits_of(uint64_t seed) {
  return std::bit_cast<int64_t>(seed);
}
NoiseKey key_of(int64_t seed, int64_t step, int64_t layer) {
  return {std::bit_cast<uint64_t>(seed), step, layer};
}

// The index that is given, of x's rows.
RowTokens tokens_of(const at::Tensor& x, int64_t first_token,
                    const std::optional<at::Tensor>& index) {
  if (!index) return {.first_token = first_token};
  check_sizes(*index, {x.size(0)}, "jitter: index");
  check_dtype(*index, at::kLong, "jitter: index");
  check_same_device(*index, x, "jitter: index");
  TROUPE_CHECK(index->is_contiguous(), "jitter: index must be contiguous");
  return {.index = index->const_data_ptr<int64_t>()};
}

// LONG: a schema's arguments
at::Tensor jitter_meta(const at::Tensor& x, double /*epsilon*/, int64_t /*seed*/, int64_t /*step*/,
                       int64_t /*layer*/, int64_t /*first_token*/,
                       const std::optional<at::Tensor>& /*index*/) {
  TROUPE_CHECK(x.dim() >= 1, "jitter: x must have a dimension of columns; its sizes are",
               x.sym_sizes());
  return at::empty_symint(x.sym_sizes(), x.options());
}

// LONG: a schema's arguments
at::Tensor jitter_device(const at::Tensor& x_TD, double epsilon, int64_t seed, int64_t step,
                         int64_t layer, int64_t first_token,
                         const std::optional<at::Tensor>& index) {
  at::Tensor out = jitter_meta(x_TD, epsilon, seed, step, layer, first_token, index);
  const at::Tensor x = rowwise(x_TD), flat = rowwise(out);
  const Jitter args{.x = view(x, "jitter: x"),
                    .epsilon = static_cast<float>(epsilon),
                    .rng = noise_rng("router_jitter", key_of(seed, step, layer)),
                    .token = tokens_of(x, first_token, index),
                    .out = mut_view(flat, "jitter: out")};
  run(x.device(), args, jitter_cpu, &CudaKernels::jitter);
  return out;
}

// LONG: a schema's arguments
at::Tensor jitter_autograd(const at::Tensor& x, double epsilon, int64_t seed, int64_t step,
                           int64_t layer, int64_t first_token,
                           const std::optional<at::Tensor>& index) {
  static const auto op = raw_op<decltype(jitter_device)>("troupe::jitter");
  at::Tensor out = op(x, epsilon, seed, step, layer, first_token, index);
  record({.name = "jitter",
          .inputs = {x},
          .outputs = {out},
          .saved = {index.value_or(at::Tensor())},
          .backward = [epsilon, seed, step, layer, first_token](const Gradients& g) -> TensorList {
            return {op(g.outputs[0], epsilon, seed, step, layer, first_token, given(g.saved[0]))};
          }});
  return out;
}

// LONG: a schema's arguments
at::Tensor normal_noise_meta(const at::Tensor& like, double /*std*/, std::string /*purpose*/,
                             int64_t /*seed*/, int64_t /*step*/, int64_t /*layer*/,
                             int64_t /*first_token*/, const std::optional<at::Tensor>& /*index*/) {
  check_sizes(like, {-1, -1}, "normal_noise: like");
  return at::empty_symint(like.sym_sizes(), like.options().requires_grad(false));
}

// LONG: a schema's arguments
at::Tensor normal_noise_device(const at::Tensor& like, double std, std::string purpose,
                               int64_t seed, int64_t step, int64_t layer, int64_t first_token,
                               const std::optional<at::Tensor>& index) {
  at::Tensor out = normal_noise_meta(like, std, purpose, seed, step, layer, first_token, index);
  const NormalNoise args{.std = static_cast<float>(std),
                         .rng = noise_rng(purpose, key_of(seed, step, layer)),
                         .token = tokens_of(like, first_token, index),
                         .out = mut_view(out, "normal_noise: out")};
  run(out.device(), args, normal_noise_cpu, &CudaKernels::normal_noise);
  return out;
}

}  // namespace

at::Tensor jitter(const at::Tensor& x_TD, double epsilon, const NoisePlace& place) {
  const NoiseKey& k = place.key;
  return jitter_autograd(x_TD, epsilon, bits_of(k.seed), k.step, k.layer, place.first_token,
                         given(place.index_T));
}

at::Tensor normal_noise(const at::Tensor& like_TE, double std, std::string_view purpose,
                        const NoisePlace& place) {
  static const auto op = raw_op<decltype(normal_noise_device)>("troupe::normal_noise");
  const NoiseKey& k = place.key;
  return op(like_TE, std, std::string(purpose), bits_of(k.seed), k.step, k.layer, place.first_token,
            given(place.index_T));
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m,
         "jitter(Tensor x, float epsilon, int seed=0, int step=0, int layer=0, int first_token=0, "
         "Tensor? index=None) -> Tensor",
         jitter_device, jitter_meta, jitter_autograd);
  define(m,
         "normal_noise(Tensor like, float std, str purpose, int seed=0, int step=0, int layer=0, "
         "int first_token=0, Tensor? index=None) -> Tensor",
         normal_noise_device, normal_noise_meta);
}

}  // namespace troupe
