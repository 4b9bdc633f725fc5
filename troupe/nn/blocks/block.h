// A block takes h to h plus what its attention and its feed-forward make of it. The kinds are in
// config/block_kinds.h; a caller may bring one of its own, in one file (BuildOptions::block, examples/block).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "troupe/nn/attention/attention_module.h"
#include "troupe/nn/config/batch.h"
#include "troupe/nn/config/build_options.h"
#include "troupe/nn/ffn/dense_ffn.h"
#include "troupe/nn/moe/moe_layer.h"

namespace troupe {

// What a block is built for; the model outlives none of it.
struct BlockShape {
  const ModelConfig& model;
  const LayerConfig& layer;
  const BuildOptions& options;
};

class Block {
 public:
  virtual ~Block() = default;
  // h [t, D], own tokens of the batch's. `context` is theirs; BlockParts::call adds the layer's
  // number.
  virtual UnitResult forward(const at::Tensor& h, const Batch& batch, const Packing& packing,
                             const Context& context) = 0;
  virtual MoeLayer* moe() = 0;                              // null: a dense block
  virtual AttentionModule* attention() { return nullptr; }  // null: none, or a form of its own
  virtual DenseFfn* ffn() { return nullptr; }               // likewise; null: a block with experts
  virtual void for_each(const std::string& prefix, const VisitParam& f) = 0;
};

// The configured kind, or the caller's own.
std::unique_ptr<Block> build_block(const BlockShape& shape);

// One call of a block.
struct BlockCall {
  const Batch& batch;
  const Packing& packing;
  Context context;

  // Shows Context::on_output what the block's module `part` computed: attention and feed-forward
  // are shown by BlockParts, a norm by the block.
  void output(const char* part, const at::Tensor& y) const;
};

// What every kind is made of: the attention and the feed-forward of a layer, each with its dropout.
// Norms and sums are the block's own.
struct BlockParts {
  explicit BlockParts(const BlockShape& shape);

  BlockCall call(const Batch& batch, const Packing& packing, const Context& context) const;
  DenseFfn* dense_ffn() { return ffn ? &*ffn : nullptr; }
  // x [t, D], normed, to what is added to h.
  at::Tensor attend(const at::Tensor& x_tD, const BlockCall& call) const;
  // The same; losses, statistics and choices of a MoE layer go to `result`.
  at::Tensor feed_forward(const at::Tensor& x_tD, const BlockCall& call, UnitResult& result) const;

  std::unique_ptr<AttentionModule> attention;  // null: the feed-forward alone
  std::optional<DenseFfn> ffn;                 // one of these two
  std::unique_ptr<MoeLayer> moe;

 private:
  int64_t index_;
  double dropout_;
  TokenSharding sharding_;
};

}  // namespace troupe
