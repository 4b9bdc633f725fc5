#include "troupe/nn/blocks/block.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <variant>

#include "troupe/nn/parts/dropout.h"

namespace troupe {
namespace {

std::unique_ptr<MoeLayer> moe_layer(const BlockShape& s) {
  const auto& [c, l, o] = s;
  return std::make_unique<MoeLayer>(
      *l.moe, moe_shape(c, l, o.tensor.sharding.ranks() * o.tensor.keys.ranks()),
      o.dispatcher ? o.dispatcher(l.index, *l.moe) : nullptr, nullptr, o.tensor);
}

at::Tensor flat_or_none(const at::Tensor& x) {
  return x.defined() ? x.reshape({-1}) : x;
}

}  // namespace

void BlockCall::output(const char* part, const at::Tensor& y) const {
  if (context.on_output == nullptr) return;
  (*context.on_output)("layers." + std::to_string(context.layer) + '.' + part, y);
}

std::unique_ptr<Block> build_block(const BlockShape& shape) {
  if (shape.options.block) return shape.options.block(shape);
  return std::visit([&](const auto& kind) { return kind.build(shape); }, shape.model.block);
}

BlockParts::BlockParts(const BlockShape& s)
    : index_(s.layer.index), dropout_(s.model.dropout), sharding_(s.options.tensor.sharding) {
  if (s.layer.attention) attention = build_attention(s.model, s.layer, s.options.tensor);
  if (s.layer.moe) {
    moe = moe_layer(s);
  } else {
    ffn.emplace(s.model, s.layer.ffn, s.options.tensor);
  }
}

BlockCall BlockParts::call(const Batch& batch, const Packing& packing,
                           const Context& context) const {
  BlockCall out{batch, packing, context};
  out.context.layer = index_;
  return out;
}

at::Tensor BlockParts::attend(const at::Tensor& x_tD, const BlockCall& call) const {
  const Batch& batch = call.batch;
  const at::IntArrayRef sizes = batch.ids_BS.sizes();
  // Attention sees the tokens of all ranks.
  const Context all = of_all_tokens(call.context, sharding_, batch.ids_BS.numel());
  const at::Tensor a = attention->forward(
      x_tD, {sizes[0], sizes[1], call.packing, all, batch.cache, batch.slice.get()});
  call.output("attention", a);
  return dropout(a, dropout_, DropPlace::kAttention, call.context);
}

at::Tensor BlockParts::feed_forward(const at::Tensor& x_tD, const BlockCall& call,
                                    UnitResult& result) const {
  const Batch& batch = call.batch;
  const auto dropped = [&](const char* part, const at::Tensor& y) {
    call.output(part, y);
    return dropout(y, dropout_, DropPlace::kFfn, call.context);
  };
  const int64_t all = batch.ids_BS.numel();
  if (ffn) return dropped("ffn", ffn->forward(x_tD, all, call.context));
  const int64_t sequences = std::max<int64_t>(batch.ids_BS.size(0), 1);  // of no tokens: one, empty
  Tokens tokens = {.valid_T = sharding_.own_rows(flat_or_none(batch.valid_BS)),
                   .ids_T = sharding_.own_rows(flat_or_none(batch.ids_BS)),
                   .sequences = sequences};
  if (!sharding_.alone()) {
    tokens.all = all;
    tokens.first = sharding_.own(all).from;
  }
  if (index_ < static_cast<int64_t>(batch.replay_TK.size())) {
    tokens.replay_TK = sharding_.own_rows(batch.replay_TK[index_]);
  }
  MoeOutput out = moe->forward(x_tD, tokens, call.context);
  result.losses = std::move(out.losses);
  result.stats = {out.stats};
  result.choices = {{index_, out.ids_TK, out.logits_TE}};
  if (out.logits_TE.defined()) call.output("moe.router", out.logits_TE);  // a table has none
  return dropped("moe", out.bias.defined() ? out.y + out.bias : out.y);
}

}  // namespace troupe
