// The attention module of a block: x -> out(attention(rotary(norm(q, k of x)), v of x)).
//
//   q, k, v = x Wq^T, x Wk^T, x Wv^T (+ biases)    one product
//   qk_norm: each head of q and k alone, or the whole of q and of k;  then the clamp;  then rotary,
//   behind which the norms of heads may stand instead
//   o = ops/attention/attention;  with attn_gate o = o sigmoid(x Wg^T);  y = o Wo^T (+ bias)
//
// With train.fp8.attention the two products have 8-bit operands.
//
// Under tensor parallelism each rank computes some heads for all tokens: x is gathered before, and
// y is reduce-scattered after. Norms over the whole vector sum squares over the ranks. Under
// context parallelism a rank fetches the keys and values that its queries see (KvExchange), or the
// ranks exchange tokens for heads, so that each has whole rows of some heads (HeadExchange).
//
// One interface for three forms: this one (multi-head, grouped, multi-query), mla.h and delta_net.h.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "troupe/nn/attention/packing.h"
#include "troupe/nn/config/config.h"
#include "troupe/nn/parts/context.h"
#include "troupe/nn/parts/fp8_products.h"
#include "troupe/nn/parts/linear.h"
#include "troupe/nn/parts/tensor_parts.h"
#include "troupe/ops/attention/attention.h"

namespace troupe {

class ContextSlice;
class KvCache;

// The query heads of a layer that this rank computes.
struct OwnHeads {
  int64_t all = 0, first = 0;
};

// What attention needs to know of a microbatch of B rows of S tokens.
struct AttentionCall {
  int64_t rows, tokens;  // B, S
  const Packing& packing;
  const Context& context;
  KvCache* cache = nullptr;
  const ContextSlice* slice = nullptr;  // context parallelism; null: whole rows
};

struct CoreInputs {
  at::Tensor q_THd, k_TGd, v_TGe;
};

class AttentionModule {
 public:
  virtual ~AttentionModule() = default;
  // x [t, D] of this rank's tokens, [B S, D] without sharding; y has the same shape.
  virtual at::Tensor forward(const at::Tensor& x_tD, const AttentionCall& call) = 0;
  virtual void for_each(const std::string& prefix,
                        const std::function<void(const std::string&, Param&)>& f) = 0;
  // From now on its projections have 8-bit operands (ops/moe_ffn/linear_fp8.h); of latent attention
  // those whose sides allow it. Refuses what train/recipe/fp8.h names.
  virtual void compute_in_fp8(const Fp8Options& fp8) = 0;
  // As Experts::keep_rounded_weights.
  virtual void keep_rounded_weights(bool keep) = 0;
  virtual void for_each_fp8(const VisitFp8& f) = 0;
};

class Attention : public AttentionModule {
 public:
  Attention(const ModelConfig& config, const LayerConfig& layer, const TensorParts& parts = {});

  at::Tensor forward(const at::Tensor& x_tD, const AttentionCall& call) override;
  void for_each(const std::string& prefix,
                const std::function<void(const std::string&, Param&)>& f) override {
    for_each_member_param(*this, prefix, f);
  }
  void compute_in_fp8(const Fp8Options& fp8) override;
  void keep_rounded_weights(bool keep) override;
  void for_each_fp8(const VisitFp8& f) override { f(fp8_); }

  static void visit(auto& m, auto&& f) {
    f("q", m.q_);
    f("k", m.k_);
    f("v", m.v_);
    f("out", m.out_);
    f("gate", m.gate_);
    f("q_norm", m.q_norm_);
    f("k_norm", m.k_norm_);
    f("sinks", m.sinks_);
    f("fp8", m.fp8_);
  }

 private:
  at::Tensor core(const at::Tensor& qkv_TN, const AttentionCall& call);
  at::Tensor apart(const at::Tensor& qkv_TN, const AttentionCall& call);
  // Under context parallelism: by fetched keys, by heads of whole rows, or in a ring.
  at::Tensor over_keys(const CoreInputs& in, const AttentionForm& form, const ContextSlice& slice);
  at::Tensor over_heads(const CoreInputs& in, AttentionForm form, const ContextSlice& slice);
  at::Tensor over_ring(const CoreInputs& in, const AttentionForm& form, const ContextSlice& slice);
  at::Tensor prepared(const at::Tensor& x, const std::optional<NormModule>& norm,
                      const AttentionCall& call);
  at::Tensor turned(const at::Tensor& x_THd, const AttentionCall& call);
  // The norm over whole vectors of which each rank has a part.
  at::Tensor whole_norm(const at::Tensor& x, const NormModule& norm) const;

  LayerConfig layer_;  // heads and kv_heads: own ones
  TokenSharding sharding_;
  KvExchange keys_;
  std::optional<HeadExchange> head_exchange_;
  std::optional<RingAttention> ring_;
  OwnHeads heads_;
  QkNorm qk_norm_;
  std::optional<double> clip_;
  double dropout_;
  Linear q_, k_, v_, out_;
  std::optional<Linear> gate_;  // of the output, by query head
  std::optional<NormModule> q_norm_, k_norm_;
  std::optional<Param> sinks_;
  std::optional<Rope> rope_;
  int64_t max_positions_;
  Fp8Products fp8_;
};

// The output projection: heads of this rank for all tokens in, y of this rank's tokens out.
struct HeadsOf {
  const TokenSharding& sharding;
  const Context& context;
};
at::Tensor out_of_heads(const Linear& out, const HeadsOf& of, const at::Tensor& o_TN,
                        const std::optional<Fp8Linear>& fp8 = {});

// Initial values of projections into the residual stream: std / sqrt(2 layers) with scaled_init.
Init residual_init(const ModelConfig& config);

// Sets the form's segments: the documents, or one per row if rows are not packed.
void set_segments(const AttentionCall& call, AttentionForm& form);
// Throws if p > 0 and rows are cut over ranks: dropout draws for all keys of a row.
void require_no_dropout(double p, const AttentionCall& call);
// Rows of the rotary table that the call may read.
int64_t positions_needed(const AttentionCall& call, int64_t max_positions);
// int64 [B S]; absent: a token's position is its place in the row.
std::optional<at::Tensor> positions_of(const AttentionCall& call, const at::Tensor& like);

// Attention with dropout of its weights, by plain ATen operators: for attn_dropout > 0 only.
struct DropoutOfHeads {
  double p = 0;
  OwnHeads heads;  // the mask is drawn for all heads, as on one rank
};
at::Tensor attention_with_dropout(const CoreInputs& in, const AttentionForm& form,
                                  const DropoutOfHeads& drop, const Context& context);

// Attention over a KV cache that holds the call's keys and values already: one operator call per
// row, since rows hold different numbers of tokens.
at::Tensor attention_over_cache(
    const at::Tensor& q_THd, const AttentionCall& call, AttentionForm form,
    const std::function<std::pair<at::Tensor, at::Tensor>(int64_t row)>& keys_values);

std::unique_ptr<AttentionModule> build_attention(const ModelConfig& config,
                                                 const LayerConfig& layer,
                                                 const TensorParts& parts = {});

}  // namespace troupe
