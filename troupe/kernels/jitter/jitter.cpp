#include "troupe/kernels/jitter/jitter.h"

#include <string>

namespace troupe {

Rng noise_rng(std::string_view purpose, const NoiseKey& key) {
  const std::string name =
      std::string(purpose) + '.' + std::to_string(key.layer) + '.' + std::to_string(key.step);
  return {key.seed, stream_of(name)};
}

void validate(const Jitter& a) {
  check_matrix(a.x, "x", a.x.rows, a.x.cols, a.x.dtype);
  check_matrix(a.out.read(), "out", a.x.rows, a.x.cols, a.x.dtype);
  TROUPE_CHECK(0 <= a.epsilon && a.epsilon < 1, "epsilon", a.epsilon);
  TROUPE_CHECK(a.token.first_token >= 0, "first_token", a.token.first_token);
}

void validate(const NormalNoise& a) {
  check_matrix(a.out.read(), "out", a.out.rows, a.out.cols, a.out.dtype);
  TROUPE_CHECK(a.std >= 0, "std", a.std);
  TROUPE_CHECK(a.token.first_token >= 0, "first_token", a.token.first_token);
}

int64_t bytes_moved(const Jitter& a) {
  return 2 * a.x.rows * a.x.cols * size_bytes(a.x.dtype);
}
int64_t bytes_moved(const NormalNoise& a) {
  return a.out.rows * a.out.cols * size_bytes(a.out.dtype);
}

void jitter_ref(const Jitter& a) {
  validate(a);
  dispatch_float64(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    const auto out = a.out.as<T>();
    for (int64_t t = 0; t < x.rows; ++t) {
      for (int64_t d = 0; d < x.cols; ++d) {
        const uint32_t word = a.rng.bits(a.token(t), static_cast<uint32_t>(d / 4)).w[d % 4];
        const double uniform = static_cast<double>(word >> 8) / (1 << 24);
        // Exact before it is rounded to the float that u is.
        const auto u = static_cast<float>(double{1 - a.epsilon} + double{2 * a.epsilon} * uniform);
        out(t, d) = static_cast<T>(static_cast<Wide<T>>(static_cast<Wide<T>>(x(t, d)) * u));
      }
    }
  });
}

void normal_noise_ref(const NormalNoise& a) {
  validate(a);
  dispatch_float64(a.out.dtype, [&]<class T>() {
    const auto out = a.out.as<T>();
    for (int64_t t = 0; t < out.rows; ++t) {
      for (int64_t e = 0; e < out.cols; ++e) {
        const float n = a.rng.normal(a.token(t), static_cast<uint32_t>(e));
        out(t, e) = static_cast<T>(static_cast<Wide<T>>(a.std * n));
      }
    }
  });
}

}  // namespace troupe
