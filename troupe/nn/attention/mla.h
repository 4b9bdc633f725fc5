// Multi-head latent attention (DeepSeek-V2, -V3):
//
//   q      = Wq x, or Wqb norm(Wqa x)           a head: nope_dim, then rope_dim that turn
//   c, r   = Wkva x                             kv_rank, and one rope_dim key for all heads, turned
//   k, v   = Wkvb norm(c)                       a head: nope_dim keys, value_dim values
//   key of head h = [k_h, r];  scale (nope_dim + rope_dim)^-1/2 times rope_softmax_factor
//
// Under tensor parallelism the products down are of own tokens, and what is gathered are the
// latents [norm(Wqa x), norm(c), r]; each rank has the products up of its heads. Under context
// parallelism it is norm(c) and the turned r that ranks exchange, and the products up are of other
// ranks' tokens too (rule CX9).
//
// With train.fp8.attention each product whose two sides are multiples of 128 has 8-bit operands
// (ops/moe_ffn/linear_fp8.h), by the sides of the whole weight, so that every layout rounds alike.
// kv_down is none where kv_rank + rope_dim is no multiple, as 512 + 64 is.
//
// Generation keeps norm(c) and the turned r: kv_rank + rope_dim numbers a token and layer.
#pragma once

#include <vector>

#include "troupe/nn/attention/attention_module.h"

namespace troupe {

// A product of the layer by its parameter's name, with the sides of its weight and what tensor
// ranks share of it.
struct MlaProduct {
  enum Cut { kWhole, kRows, kColumns };

  const char* name;
  int64_t out, in;
  Cut cut;

  bool fits_fp8() const;  // both sides are multiples of 128
  MlaProduct of_rank(int64_t ranks) const;
};
std::vector<MlaProduct> mla_products(const ModelConfig& config, const LayerConfig& layer);

class Mla : public AttentionModule {
 public:
  Mla(const ModelConfig& config, const LayerConfig& layer, const TensorParts& parts = {});

  at::Tensor forward(const at::Tensor& x_tD, const AttentionCall& call) override;
  void for_each(const std::string& prefix,
                const std::function<void(const std::string&, Param&)>& f) override {
    for_each_member_param(*this, prefix, f);
  }
  void compute_in_fp8(const Fp8Options& fp8) override;
  void keep_rounded_weights(bool keep) override;
  void for_each_fp8(const VisitFp8& f) override;

  static void visit(auto& m, auto&& f) {
    f("q", m.q_);
    f("q_down", m.q_down_);
    f("q_norm", m.q_norm_);
    f("q_up", m.q_up_);
    f("kv_down", m.kv_down_);
    f("kv_norm", m.kv_norm_);
    f("kv_up", m.kv_up_);
    f("out", m.out_);
  }

 private:
  // One of mla_products(), in 8 bits where its sides allow it.
  struct Product : Linear {
    explicit Product(const LinearShape& shape) : Linear(shape) {}
    // [T, in] to [T, out]
    at::Tensor forward(const at::Tensor& x, const Context& context) const;
    std::optional<Fp8Linear> in_fp8() const;

    static void visit(auto& m, auto&& f) {
      Linear::visit(m, f);
      f("fp8", m.fp8);
    }

    Fp8Products fp8 = {};
  };
  struct Inputs {
    at::Tensor q_TN, latent_Tc, r_Tr;  // of all tokens; queries of own heads, not turned yet
  };
  Inputs inputs(const at::Tensor& x_tD, const AttentionCall& call) const;
  std::vector<Product*> products();
  at::Tensor turned(const at::Tensor& x_THd, int64_t first, const AttentionCall& call);

  MlaConfig config_;
  TokenSharding sharding_;
  KvExchange keys_;
  OwnHeads all_heads_;
  int64_t heads_, index_;  // own ones
  double scale_, dropout_;
  std::optional<Product> q_, q_down_, q_up_;
  std::optional<NormModule> q_norm_;
  Product kv_down_, kv_up_, out_;
  NormModule kv_norm_;
  Rope rope_;
  int64_t max_positions_;
};

}  // namespace troupe
