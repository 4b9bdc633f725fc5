#include "troupe/ops/jitter.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <optional>
#include <string>
#include <vector>

#include "troupe/ops/support/arg_check.h"
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

// Which draws these are.
struct DrawArgs {
  int64_t seed, step, layer, first_token;

  NoiseKey key() const { return {std::bit_cast<uint64_t>(seed), step, layer}; }

  static auto visit(auto& a, auto&& f) {
    return f(arg("seed", a.seed, Default{0}), arg("step", a.step, Default{0}),
             arg("layer", a.layer, Default{0}), arg("first_token", a.first_token, Default{0}));
  }
};

DrawArgs draws_of(const NoisePlace& place) {
  return {bits_of(place.key.seed), place.key.step, place.key.layer, place.first_token};
}

struct JitterArgs {
  const at::Tensor& x;  // [.., D]
  double epsilon;
  DrawArgs draws;
  const std::optional<at::Tensor>& index;  // of each row

  static constexpr const char *kName = "jitter", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("x", a.x, Dims{"...D"}), arg("epsilon", a.epsilon), group(a.draws),
             arg("index", a.index, kDefaultNone));
  }
};

struct NormalNoiseArgs {
  const at::Tensor& like;
  double std;
  std::string purpose;
  DrawArgs draws;
  const std::optional<at::Tensor>& index;

  static constexpr const char *kName = "normal_noise", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("like", a.like, Dims{"TE"}), arg("std", a.std), arg("purpose", a.purpose),
             group(a.draws), arg("index", a.index, kDefaultNone));
  }
};

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

at::Tensor jitter_meta(const JitterArgs& a) {
  check_args(a);
  return at::empty_symint(a.x.sym_sizes(), a.x.options());
}

at::Tensor jitter_device(const JitterArgs& a) {
  at::Tensor out = jitter_meta(a);
  const at::Tensor x = rowwise(a.x), flat = rowwise(out);
  const Jitter args{.x = view(x, "jitter: x"),
                    .epsilon = static_cast<float>(a.epsilon),
                    .rng = noise_rng("router_jitter", a.draws.key()),
                    .token = tokens_of(x, a.draws.first_token, a.index),
                    .out = mut_view(flat, "jitter: out")};
  run(x.device(), args, jitter_cpu, &CudaKernels::jitter);
  return out;
}

at::Tensor jitter_op(const JitterArgs& a) {
  static const auto op = raw_op<decltype(jitter_device)>();
  at::Tensor out = op(a);
  record({.name = "jitter",
          .inputs = {a.x},
          .outputs = {out},
          .saved = {a.index.value_or(at::Tensor())},
          .backward = [epsilon = a.epsilon, draws = a.draws](const Gradients& g) -> TensorList {
            return {op({g.outputs[0], epsilon, draws, given(g.saved[0])})};
          }});
  return out;
}

at::Tensor normal_noise_meta(const NormalNoiseArgs& a) {
  check_args(a);
  return at::empty_symint(a.like.sym_sizes(), a.like.options().requires_grad(false));
}

at::Tensor normal_noise_device(const NormalNoiseArgs& a) {
  at::Tensor out = normal_noise_meta(a);
  const NormalNoise args{.std = static_cast<float>(a.std),
                         .rng = noise_rng(a.purpose, a.draws.key()),
                         .token = tokens_of(a.like, a.draws.first_token, a.index),
                         .out = mut_view(out, "normal_noise: out")};
  run(out.device(), args, normal_noise_cpu, &CudaKernels::normal_noise);
  return out;
}

}  // namespace

at::Tensor jitter(const at::Tensor& x_TD, double epsilon, const NoisePlace& place) {
  return jitter_op({x_TD, epsilon, draws_of(place), given(place.index_T)});
}

at::Tensor normal_noise(const at::Tensor& like_TE, double std, std::string_view purpose,
                        const NoisePlace& place) {
  static const auto op = raw_op<decltype(normal_noise_device)>();
  return op({like_TE, std, std::string(purpose), draws_of(place), given(place.index_T)});
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<jitter_device, jitter_meta, jitter_op>(m);
  define<normal_noise_device, normal_noise_meta>(m);
}

}  // namespace troupe
