// The router's noise (kernels/jitter): the same for every layout, and again in a recomputed pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "troupe/kernels/jitter/jitter.h"

namespace troupe {

// What the noise is a function of, beside the column: row t is of token index_T[t], without an
// index of first_token + t.
struct NoisePlace {
  NoiseKey key;  // seed, step, layer
  int64_t first_token = 0;
  at::Tensor index_T = {};  // int64
};

// R2: x u with u uniform in [1 - epsilon, 1 + epsilon); x [.., D], its type kept. The gradient is
// multiplied by the same u.
at::Tensor jitter(const at::Tensor& x_TD, double epsilon, const NoisePlace& place);

// R3: N(0, std) of the sizes, type and device of `like` [T, E]. Another purpose is other noise.
at::Tensor normal_noise(const at::Tensor& like_TE, double std, std::string_view purpose,
                        const NoisePlace& place);

}  // namespace troupe
