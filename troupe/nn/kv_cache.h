// Keys and values of the tokens that generation has seen, a pair of tensors a layer.
//
//   KvCache cache(config.layers, /*capacity=*/512);
//   batch.cache = &cache;  run all units on [B, n] new tokens;  cache.advance(n);
//
// MLA keeps its latent vectors in place of keys and values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace troupe {

class KvCache {
 public:
  KvCache(int64_t layers, int64_t capacity) : held_(layers), capacity_(capacity) {}

  int64_t length() const { return length_; }
  int64_t capacity() const { return capacity_; }

  // Writes the new tokens' rows, [B, n, ..] each, after those held, and returns all of them,
  // [B, length + n, ..]. The cache's own length grows with advance() alone: all layers of a call
  // see the same.
  std::pair<at::Tensor, at::Tensor> extend(int64_t layer, const at::Tensor& a, const at::Tensor& b);
  void advance(int64_t n);

 private:
  struct Held {
    at::Tensor a, b;  // [B, capacity, ..]
  };
  std::vector<Held> held_;
  int64_t capacity_, length_ = 0;
};

}  // namespace troupe
