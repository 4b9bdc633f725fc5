// What the families' config.json have in common, in one direction: `keys` reads or writes. A family
// calls the fields it has, each once, with what its class takes for a missing key.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "troupe/checkpoint/hf/families/families.h"
#include "troupe/checkpoint/hf/hf_config.h"
#include "troupe/checkpoint/hf/hf_keys.h"

namespace troupe {

struct ConfigFields {
  HfConfig& config;
  HfKeys& keys;
  Json& passed;

  // vocab_size to rms_norm_eps, tie_word_embeddings, hidden_act and initializer_range.
  struct Sizes {
    int64_t vocab, width, layers, heads, positions;
    double eps;
  };
  void sizes(const Sizes& absent);
  // E4008 with its key for a count that is out of bounds, and for one of the five above that is 0:
  // before anything is repeated so often.
  void check_sizes();
  // The same once all is read, for the sizes that layers of some sort alone have.
  void check_layer_sizes();
  void init_std();
  void kv_heads(std::optional<int64_t> absent);
  void head_dim(int64_t absent);
  void head_dim_from_width();  // the class has no such key; heads divide the width
  void attention_bias(bool absent);
  // Latent attention without biases; `absent` but for its q_rank, which a missing key says to be 0.
  void latent_attention(const MlaConfig& absent);
  void qkv_bias_alone(const char* name, bool absent);  // attention's output never has one
  // "sliding_window" where it is `used`; 0: none.
  int64_t window_size(bool used, int64_t absent);
  // The window, and which layers have it: "layer_types", or where there are none the layers from
  // "max_window_layers" on, all under "use_sliding_window".
  void sliding_window(int64_t absent, int64_t absent_first);
  // A list with one of two words for each layer; which layers have the first, or nothing where the file
  // has none. Writing: of `layers`.
  struct TwoWords {
    const char *first, *second;
  };
  std::optional<std::vector<bool>> words_of_layers(const char* name, const TwoWords& words,
                                                   const std::vector<bool>& layers);
  // "layer_types": false where the file has none.
  bool layer_types();
  void sparse_layers();  // "decoder_sparse_step" and "mlp_only_layers"
  // Experts in sparse layers of full attention, by a softmax before the choice (Qwen's).
  void sparse_experts(int64_t count, int64_t top_k);
  // One shared expert behind a gate (Qwen2 MoE, Qwen3-Next); `absent`: its width.
  void gated_shared_expert(int64_t absent);

  void rope(double theta, double fraction = 1);  // what the class takes for missing keys
  void read_scaling(HfKeys& p);
  void rope_fraction(HfKeys& p, double absent);

  // A class whose default names a token of padding does not train that token's embedding: an export
  // names none, unless the model came with one.
  void no_padding();

  // The router with a bias of its choice, unscaled and among all experts.
  SigmoidBiasRouting& biased_router(IndependentScore score);
  // The same with sigmoids, scaled and among groups (DeepSeek-V3's).
  void sigmoid_router(double scale, int64_t groups, int64_t keep);
  // The router as top-k softmax; `order` is the class's, when reading.
  TopkSoftmaxRouting& softmax(SoftmaxOrder order);
  void aux_loss(HfKeys& k, const char* name, BalanceConfig& balance, double absent);
  bool sums_to_one(const TopkSoftmaxRouting& router) const;
  void norm_topk(TopkSoftmaxRouting& router);
  // The family's class knows one of the two alone.
  void always_sums_to_one(const TopkSoftmaxRouting& router, bool does) const;
  void experts(std::initializer_list<const char*> names, int64_t count, int64_t top_k);
  void write_rope(HfKeys& to) const;

  // E4008 with its key, or where none gave it with `ours`, for a size below 1.
  void at_least_one(const int64_t& size, const char* ours) const;

 private:
  void require_bounds() const;
};

// "[0]*3+[1]*5", as moe_layers() reads it.
std::string pattern_of(const std::vector<bool>& layers);

}  // namespace troupe
