#include "troupe/nn/model/embedding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/nn/attention/kv_cache.h"
#include "troupe/nn/parts/dropout.h"

namespace troupe {

Embedding::Embedding(const ModelConfig& c, const TensorParts& parts)
    : dropout_(c.dropout), parts_(parts) {
  const Init init = {.kind = Init::kNormal, .std = c.init_std.value_or(0.02)};
  tokens = Param::of({padded_vocab(c), c.width}, init, Group::kEmbedding);
  parts.cut_table(tokens);
  if (c.positions == PositionForm::kLearned) {
    positions = Param::of({c.max_positions, c.width}, init, Group::kEmbedding);
  }
}

at::Tensor Embedding::rows(const at::Tensor& ids_BS) const {
  const at::Tensor ids = ids_BS.reshape({-1});
  if (!parts_.split_vocab) return at::embedding(tokens.value, parts_.sharding.own_rows(ids));
  // Each rank has some tokens' rows; zeros for the others change no sum.
  const int64_t count = tokens.size[0];
  const at::Tensor row = ids - tokens.offset[0], here = row.ge(0).logical_and(row.lt(count));
  const at::Tensor found = at::embedding(tokens.value, row.clamp(0, count - 1));
  return parts_.sharding.reduce_scatter(found * here.unsqueeze(1).to(found.scalar_type()));
}

at::Tensor Embedding::forward(const Batch& batch, const Packing& packing,
                              const Context& context) const {
  const at::Tensor& ids = batch.ids_BS;
  TROUPE_CHECK(ids.defined(), "the batch has no ids");
  TROUPE_CHECK(ids.dim() == 2 && ids.scalar_type() == at::kLong,
               "ids must be int64 [B, S]; they are", ids.scalar_type(), ids.sizes());
  at::Tensor h = rows(ids);
  context.output("embed.tokens", h);
  if (positions) {
    const int64_t S = ids.size(1), most = positions->value.size(0);
    TROUPE_CHECK(S <= most, "position", S - 1, "is beyond max_positions", most);
    at::Tensor places = packing.positions_BS;
    if (!places.defined() && batch.cache != nullptr) {
      places = batch.cache->positions(S).to(ids.device());
    }
    if (places.defined()) {
      h = h + at::embedding(positions->value, parts_.sharding.own_rows(places.reshape({-1})));
    } else if (parts_.sharding.alone()) {
      h = (h.view({ids.size(0), S, h.size(1)}) + positions->value.narrow(0, 0, S)).flatten(0, 1);
    } else {
      const TokenRange own = parts_.sharding.own(ids.numel());
      const at::Tensor place = at::arange(own.from, own.from + own.count, ids.options());
      h = h + at::embedding(positions->value, place.remainder(std::max<int64_t>(S, 1)));
    }
  }
  Context here = context;
  here.layer = 0;
  return dropout(h, dropout_, DropPlace::kEmbedding, here);
}

}  // namespace troupe
