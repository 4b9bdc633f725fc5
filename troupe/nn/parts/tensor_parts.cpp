#include "troupe/nn/parts/tensor_parts.h"

#include <algorithm>

#include "troupe/core/check.h"

namespace troupe {

void TensorParts::cut(Param& p, int64_t dim) const {
  if (sharding.alone()) return;
  const int64_t all = p.size[static_cast<size_t>(dim)], ranks = sharding.ranks();
  TROUPE_CHECK(all % ranks == 0, all, "rows or columns do not divide over", ranks, "ranks");
  p.take_box(dim, sharding.rank() * (all / ranks), all / ranks, Axis::kTensor);
}

void TensorParts::cut_key_heads(Param& p, int64_t heads) const {
  if (key_repeat(heads) == 1) return cut(p, 0);
  const int64_t repeat = key_repeat(heads), rows = p.size[0] / heads;
  TROUPE_CHECK(sharding.ranks() % heads == 0, sharding.ranks(), "ranks do not share", heads,
               "key heads");
  p.take_box(0, sharding.rank() / repeat * rows, rows, Axis::kTensor, repeat);
}

void TensorParts::cut(std::optional<LoraFactors>& adapter, int64_t dim) const {
  if (!adapter) return;
  require_whole(*adapter, sharding.ranks());
  cut(dim == 0 ? adapter->b : adapter->a, dim);
}

void TensorParts::cut_key_heads(std::optional<LoraFactors>& adapter, int64_t heads) const {
  if (!adapter) return;
  require_whole(*adapter, sharding.ranks());
  cut_key_heads(adapter->b, heads);
}

void TensorParts::cut_table(Param& p) const {
  if (sharding.alone() || !split_vocab) return;
  const int64_t rows = p.size[0], blocks = vocab_blocks(rows), ranks = sharding.ranks();
  TROUPE_CHECK(blocks >= ranks, "a table of", rows, "rows, in blocks of", kVocabBlock,
               ", is not cut over", ranks, "ranks");
  const int64_t from = sharding.rank() * blocks / ranks * kVocabBlock;
  const int64_t end = std::min((sharding.rank() + 1) * blocks / ranks * kVocabBlock, rows);
  p.take_box(0, from, end - from, Axis::kTensor);
}

}  // namespace troupe
