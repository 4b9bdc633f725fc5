// The router's noise: functions of what they are for and of the element's global place
// (core/number/rng.h), so a split over ranks, a recomputed pass and a resumed run draw the same.
//
//   jitter (R2)        out[t, d] = x[t, d] u[t, d], in f32 (f64 for f64), rounded once
//                      u = 1 - epsilon + 2 epsilon U, U in [0, 1) from word d mod 4 of
//                      rng.bits(token(t), d div 4)
//   normal_noise (R3)  out[t, e] = std rng.normal(token(t), e)
//
// token(t) = index[t], without an index first_token + t: the row's place in the global batch
// (MF13). u is the same bits on CPU and CUDA. The gradient of jitter is jitter of the gradient,
// with the same fields. out may be x. T = 0 does nothing. Types: f32, bf16, f16; on the CPU also
// f64. R3 `random` takes the logits from normal_noise (the gradient goes straight through), R3
// `biased` adds one row of it, of token 0, to every token's logits.
#pragma once

#include <cstdint>
#include <string_view>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"
#include "troupe/core/host_device.h"
#include "troupe/core/number/rng.h"

namespace troupe {

struct NoiseKey {
  uint64_t seed;
  int64_t step;
  int64_t layer;
};

// Streams of other purposes, steps and layers are unrelated. purpose: "router_jitter", ...
Rng noise_rng(std::string_view purpose, const NoiseKey& key);

struct RowTokens {
  int64_t first_token = 0;         // the global index of row 0
  const int64_t* index = nullptr;  // [T] of each row, or none

  TROUPE_HOST_DEVICE int64_t operator()(int64_t t) const {
    return index == nullptr ? first_token + t : index[t];
  }
};

struct Jitter {
  MatRef x;  // [T, D]
  float epsilon = 0;
  Rng rng{0, 0};
  RowTokens token;
  MutRef out;  // [T, D]  out, as x
};

struct NormalNoise {
  float std = 1;
  Rng rng{0, 0};
  RowTokens token;
  MutRef out;  // [T, E]  out
};

void validate(const Jitter& args);
void validate(const NormalNoise& args);
int64_t bytes_moved(const Jitter& args);
int64_t bytes_moved(const NormalNoise& args);

void jitter_ref(const Jitter& args);
void jitter_cpu(const Jitter& args, const Pool& pool);
void jitter_cuda(const Jitter& args, cudaStream_t stream);

void normal_noise_ref(const NormalNoise& args);
void normal_noise_cpu(const NormalNoise& args, const Pool& pool);
void normal_noise_cuda(const NormalNoise& args, cudaStream_t stream);

}  // namespace troupe
