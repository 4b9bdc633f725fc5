#include "troupe/nn/block.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <tuple>

#include "troupe/nn/dropout.h"

namespace troupe {
namespace {

std::unique_ptr<MoeLayer> moe_layer(const ModelConfig& c, const LayerConfig& l,
                                    const BuildOptions& o) {
  return std::make_unique<MoeLayer>(*l.moe, moe_shape(c, l, o.group_ranks),
                                    o.dispatcher ? o.dispatcher(l.index, *l.moe) : nullptr);
}

at::Tensor flat_or_none(const at::Tensor& x) {
  return x.defined() ? x.reshape({-1}) : x;
}

}  // namespace

Block::Block(const ModelConfig& c, const LayerConfig& l, const BuildOptions& o)
    : index_(l.index), dropout_(c.dropout), norm2_(c.norm, c.width) {
  if (l.attention) {
    norm1_.emplace(c.norm, c.width);
    attention_ = build_attention(c, l);
  }
  if (l.moe) {
    moe_ = moe_layer(c, l, o);
  } else {
    ffn_.emplace(c, l.ffn);
  }
}

UnitResult Block::forward(const at::Tensor& h, const Batch& batch, const Packing& packing,
                          const Context& given) {
  Context context = given;
  context.layer = index_;
  at::Tensor state = h.flatten(0, 1), x;
  if (attention_) {
    const AttentionCall call = {h.size(0), h.size(1), packing, context, batch.cache};
    const at::Tensor a = attention_->forward(norm1_->forward(state), call);
    std::tie(x, state) = norm2_.add(dropout(a, dropout_, DropPlace::kAttention, context), state);
  } else {
    x = norm2_.forward(state);
  }
  UnitResult result;
  result.h = h;  // for its sizes
  const at::Tensor y = feed_forward(x, batch, context, result);
  result.h = (state + dropout(y, dropout_, DropPlace::kFfn, context)).view(h.sizes());
  return result;
}

at::Tensor Block::feed_forward(const at::Tensor& x_TD, const Batch& batch, const Context& context,
                               UnitResult& result) {
  if (ffn_) return ffn_->forward(x_TD);
  const int64_t sequences = std::max<int64_t>(result.h.size(0), 1);  // of no tokens: one, empty
  Tokens tokens = {.valid_T = flat_or_none(batch.valid_BS),
                   .ids_T = flat_or_none(batch.ids_BS),
                   .sequences = sequences};
  if (index_ < static_cast<int64_t>(batch.replay_TK.size())) {
    tokens.replay_TK = batch.replay_TK[index_];
  }
  MoeOutput out = moe_->forward(x_TD, tokens, context);
  result.losses = std::move(out.losses);
  result.stats = {out.stats};
  result.choices_TK = out.ids_TK;
  return out.bias.defined() ? out.y + out.bias : out.y;
}

}  // namespace troupe
