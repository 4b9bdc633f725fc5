// Attention as a block has it: x -> out(attention(turned(norm(q, k of x)), v of x)).
//
//   q, k, v = x Wq^T, x Wk^T, x Wv^T (+ biases)    one product
//   qk_norm: each head of q and k alone, or the whole of q and of k;  then the clamp;  then rotary
//   o = ops/attention/attention;  y = o Wo^T (+ bias)
//
// Interface for both forms: this one (multi-head, grouped, multi-query) and mla.h.
#pragma once

#include <memory>

#include "troupe/nn/context.h"
#include "troupe/nn/linear.h"
#include "troupe/nn/models/config.h"
#include "troupe/nn/packing.h"
#include "troupe/ops/attention/attention.h"

namespace troupe {

class KvCache;

// What attention is told of a microbatch of B rows of S tokens.
struct AttentionCall {
  int64_t rows, tokens;  // B, S
  const Packing& packing;
  const Context& context;
  KvCache* cache = nullptr;
};

class AttentionModule {
 public:
  virtual ~AttentionModule() = default;
  // x [B S, D] to [B S, D].
  virtual at::Tensor forward(const at::Tensor& x_TD, const AttentionCall& call) = 0;
  virtual void for_each(const std::string& prefix,
                        const std::function<void(const std::string&, Param&)>& f) = 0;
};

class Attention : public AttentionModule {
 public:
  Attention(const ModelConfig& config, const LayerConfig& layer);

  at::Tensor forward(const at::Tensor& x_TD, const AttentionCall& call) override;
  void for_each(const std::string& prefix,
                const std::function<void(const std::string&, Param&)>& f) override {
    for_each_member_param(*this, prefix, f);
  }

  static void visit(auto& m, auto&& f) {
    f("q", m.q_);
    f("k", m.k_);
    f("v", m.v_);
    f("out", m.out_);
    f("q_norm", m.q_norm_);
    f("k_norm", m.k_norm_);
    f("sinks", m.sinks_);
  }

 private:
  at::Tensor core(const at::Tensor& qkv_TN, const AttentionCall& call);
  at::Tensor apart(const at::Tensor& qkv_TN, const AttentionCall& call);
  at::Tensor prepared(const at::Tensor& x, const std::optional<Norm>& norm,
                      const AttentionCall& call);

  LayerConfig layer_;
  QkNorm qk_norm_;
  std::optional<double> clip_;
  double dropout_;
  Linear q_, k_, v_, out_;
  std::optional<Norm> q_norm_, k_norm_;
  std::optional<Param> sinks_;
  std::optional<Rope> rope_;
  int64_t max_positions_;
};

// How products into h begin: std / sqrt(2 layers) with scaled_init.
Init residual_init(const ModelConfig& config);

// Lengths of the segments, one a row where rows are not packed.
std::vector<int64_t> segment_lengths(const AttentionCall& call);
// Rows of a rotary table that the call may ask for.
int64_t positions_needed(const AttentionCall& call, int64_t max_positions);
// int64 [B S], or none: a token's place in its row.
std::optional<at::Tensor> positions_of(const AttentionCall& call, const at::Tensor& like);

// The core with dropout of its weights, the plain way: for training with attn_dropout alone.
struct CoreInputs {
  at::Tensor q_THd, k_TGd, v_TGe;
};
at::Tensor attention_with_dropout(const CoreInputs& in, const AttentionForm& form, double p,
                                  const Context& context);

std::unique_ptr<AttentionModule> build_attention(const ModelConfig& config,
                                                 const LayerConfig& layer);

}  // namespace troupe
