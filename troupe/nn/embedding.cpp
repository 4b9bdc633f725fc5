#include "troupe/nn/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>

#include "troupe/core/check.h"
#include "troupe/nn/dropout.h"
#include "troupe/nn/kv_cache.h"

namespace troupe {

Embedding::Embedding(const ModelConfig& c) : dropout_(c.dropout) {
  const Init init = {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)};
  tokens = Param::of({padded_vocab(c), c.width}, init, Group::kEmbedding);
  if (c.positions == PositionForm::kLearned) {
    positions = Param::of({c.max_positions, c.width}, init, Group::kEmbedding);
  }
}

at::Tensor Embedding::rows(const at::Tensor& ids) const {
  return at::embedding(tokens.value, ids);
}

at::Tensor Embedding::forward(const Batch& batch, const Packing& packing,
                              const Context& context) const {
  const at::Tensor& ids = batch.ids_BS;
  TROUPE_CHECK(ids.defined(), "the batch has no ids");
  TROUPE_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong,
               "ids must be int64 [B, S]; they are", ids.scalar_type(), ids.sizes());
  at::Tensor h = rows(ids);
  if (positions) {
    const int64_t past = batch.cache != nullptr ? batch.cache->length() : 0, S = ids.size(1);
    TROUPE_CHECK(past + S <= positions->value.size(0), "position", past + S - 1,
                 "lies beyond max_positions", positions->value.size(0));
    h = h + (packing.positions_BS.defined() ? at::embedding(positions->value, packing.positions_BS)
                                            : positions->value.narrow(0, past, S));
  }
  Context here = context;
  here.layer = 0;
  return dropout(h, dropout_, DropPlace::kEmbedding, here);
}

}  // namespace troupe
