#include "troupe/ops/jitter.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <string>
#include <vector>

#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

// In the schemas place = [seed, step, layer, first token]; the seed's 64 bits as they are.
using Place = c10::ArrayRef<int64_t>;

std::vector<int64_t> pack(const NoisePlace& p) {
  return {std::bit_cast<int64_t>(p.key.seed), p.key.step, p.key.layer, p.first_token};
}

NoisePlace unpack(Place p, const char* name) {
  TROUPE_CHECK(p.size() == 4, name, "must be [seed, step, layer, first_token]; it has", p.size());
  return {{std::bit_cast<uint64_t>(p[0]), p[1], p[2]}, p[3]};
}

at::Tensor jitter_meta(const at::Tensor& x, double /*epsilon*/, Place place) {
  TROUPE_CHECK(x.dim() >= 1, "jitter: x must have a dimension of columns; its sizes are",
               x.sizes());
  unpack(place, "jitter: place");
  return at::empty(x.sizes(), x.options());
}

at::Tensor jitter_device(const at::Tensor& x_TD, double epsilon, Place place) {
  at::Tensor out = jitter_meta(x_TD, epsilon, place);
  const NoisePlace p = unpack(place, "jitter: place");
  const at::Tensor x = rowwise(x_TD), flat = rowwise(out);
  const Jitter args{.x = view(x, "jitter: x"),
                    .epsilon = static_cast<float>(epsilon),
                    .rng = noise_rng("router_jitter", p.key),
                    .first_token = p.first_token,
                    .out = mut_view(flat, "jitter: out")};
  run(x.device(), args, jitter_cpu, &CudaKernels::jitter);
  return out;
}

at::Tensor jitter_autograd(const at::Tensor& x, double epsilon, Place place) {
  static const auto op = raw_op<decltype(jitter_device)>("troupe::jitter");
  at::Tensor out = op(x, epsilon, place);
  record({.name = "jitter",
          .inputs = {x},
          .outputs = {out},
          .saved = {},
          .backward = [epsilon, numbers = place.vec()](const Gradients& g) -> TensorList {
            return {op(g.outputs[0], epsilon, numbers)};
          }});
  return out;
}

at::Tensor normal_noise_meta(const at::Tensor& like, double /*std*/, std::string /*purpose*/,
                             Place place) {
  check_sizes(like, {-1, -1}, "normal_noise: like");
  unpack(place, "normal_noise: place");
  return at::empty(like.sizes(), like.options().requires_grad(false));
}

at::Tensor normal_noise_device(const at::Tensor& like, double std, std::string purpose,
                               Place place) {
  at::Tensor out = normal_noise_meta(like, std, purpose, place);
  const NoisePlace p = unpack(place, "normal_noise: place");
  const NormalNoise args{.std = static_cast<float>(std),
                         .rng = noise_rng(purpose, p.key),
                         .first_token = p.first_token,
                         .out = mut_view(out, "normal_noise: out")};
  run(out.device(), args, normal_noise_cpu, &CudaKernels::normal_noise);
  return out;
}

}  // namespace

at::Tensor jitter(const at::Tensor& x_TD, double epsilon, const NoisePlace& place) {
  return jitter_autograd(x_TD, epsilon, pack(place));
}

at::Tensor normal_noise(const at::Tensor& like_TE, double std, std::string_view purpose,
                        const NoisePlace& place) {
  static const auto op = raw_op<decltype(normal_noise_device)>("troupe::normal_noise");
  return op(like_TE, std, std::string(purpose), pack(place));
}

void define_jitter(torch::Library& m) {
  define(m, "jitter(Tensor x, float epsilon, int[] place) -> Tensor", jitter_device, jitter_meta,
         jitter_autograd);
  define(m, "normal_noise(Tensor like, float std, str purpose, int[] place) -> Tensor",
         normal_noise_device, normal_noise_meta);
}

}  // namespace troupe
