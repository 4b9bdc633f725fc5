// The KV cache of generation: a pair of tensors per layer, a row per text. Rows may hold different
// numbers of tokens.
//
//   KvCache cache(config.layers, /*rows=*/2, /*capacity=*/512);
//   cache.use({0, 1});  batch.cache = &cache;
//   run all units on [2, n] new tokens;  cache.advance(n);
//
// MLA keeps its latent vectors in place of keys and values. A layer of linear attention keeps two
// states a row, whatever its length: what stands behind its last token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace troupe {

class KvCache {
 public:
  KvCache(int64_t layers, int64_t rows, int64_t capacity);

  int64_t rows() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t capacity() const { return capacity_; }  // tokens of a row
  int64_t length(int64_t row) const { return lengths_.at(row); }

  // Selects the rows of the next calls: their batch's i-th row is row rows[i] here. Initially all.
  void use(std::vector<int64_t> rows);
  int64_t past(int64_t i) const { return lengths_.at(used_.at(i)); }
  // The positions of n new tokens in each of the batch's rows: int64 [B, n] on the host.
  at::Tensor positions(int64_t n) const;
  // Appends the new tokens of a layer, [B, n, ..] each. Only advance() changes the lengths, so all
  // layers of a call see the same ones.
  void extend(int64_t layer, const at::Tensor& a, const at::Tensor& b);
  // The batch's i-th row, its n new tokens included: [past(i) + n, ..].
  std::pair<at::Tensor, at::Tensor> row(int64_t layer, int64_t i, int64_t n) const;
  void advance(int64_t n);

  // The states of a layer of linear attention, those of the batch's rows: zeros where a row is empty.
  // Undefined before the first keep_states.
  struct States {
    at::Tensor a, b;  // [B, ..]
  };
  States states(int64_t layer) const;
  void keep_states(int64_t layer, const States& states);

  // Makes row `to` the first n tokens of row `from`; with states none of them, or all.
  void copy(int64_t from, int64_t to, int64_t n);
  // Grows to at least `rows` rows of `capacity` tokens; the contents stay. Never shrinks.
  void grow(int64_t rows, int64_t capacity);

 private:
  struct Held {
    at::Tensor a, b;  // [rows, capacity, ..]
  };
  std::vector<Held> held_;
  std::vector<States> states_;  // [rows, ..]
  int64_t capacity_;
  std::vector<int64_t> lengths_, used_;
};

}  // namespace troupe
