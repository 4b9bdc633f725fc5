#include "troupe/checkpoint/hf/hf_config.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <utility>

#include "troupe/checkpoint/hf/hf_keys.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/nn/moe_pattern.h"

namespace troupe {
namespace {

constexpr int64_t kMaxConfig = int64_t{16} << 20;  // bytes

const char* architecture(HfFamily family) {
  switch (family) {
    case HfFamily::kLlama: return "LlamaForCausalLM";
    case HfFamily::kMixtral: return "MixtralForCausalLM";
    case HfFamily::kQwen3Moe: return "Qwen3MoeForCausalLM";
    case HfFamily::kOlmoe: return "OlmoeForCausalLM";
    case HfFamily::kDbrx: return "DbrxForCausalLM";
    case HfFamily::kDeepseekV2: return "DeepseekV2ForCausalLM";
    case HfFamily::kDeepseekV3: return "DeepseekV3ForCausalLM";
    case HfFamily::kGptOss: return "GptOssForCausalLM";
  }
  return "?";
}

// "[0]*3+[1]*5", as moe_layers() reads it.
std::string pattern_of(const std::vector<bool>& layers) {
  std::string out;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i;
    while (end < layers.size() && layers[end] == layers[i]) ++end;
    if (!out.empty()) out += '+';
    out += layers[i] ? "[1]*" : "[0]*";
    out += std::to_string(end - i);
    i = end;
  }
  return out;
}

// Told by the name that config.json has for it, where that is one of the common ones.
void require_counts(const ModelConfig& model, const std::string& place) {
  constexpr std::pair<const char*, const char*> kTheirs[] = {{"layers", "num_hidden_layers"},
                                                             {"heads", "num_attention_heads"},
                                                             {"width", "hidden_size"},
                                                             {"vocab", "vocab_size"}};
  for (const CountFault& fault : counts_out_of_bounds(model, kModelBounds)) {
    const auto known =
        std::ranges::find(kTheirs, fault.path, [](const auto& t) { return t.first; });
    const bool named = known != std::end(kTheirs);
    fail(Code::kBadModelConfig, place + (named ? known->second : "model." + fault.path),
         fault.what);
  }
}

// Twelve digits: a coefficient that was converted and back again is the one that was written.
double rounded(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.12g", x);
  return std::strtod(text, nullptr);
}

// One config.json, in one direction: `keys` reads or writes.
class Family {
 public:
  Family(HfConfig& config, HfKeys& keys, Json& passed)
      : hf_(config), c_(config.model), k_(keys), passed_(passed) {}

  void visit() {
    switch (hf_.family) {
      case HfFamily::kLlama: return llama();
      case HfFamily::kMixtral: return mixtral();
      case HfFamily::kQwen3Moe: return qwen3_moe();
      case HfFamily::kOlmoe: return olmoe();
      case HfFamily::kDbrx: return dbrx();
      case HfFamily::kDeepseekV2:
      case HfFamily::kDeepseekV3: return deepseek();
      case HfFamily::kGptOss: return gpt_oss();
    }
  }

  void tokens_and_type() {
    k_.pass({"bos_token_id",
             "eos_token_id",
             "pad_token_id",
             "architectures",
             "use_cache",
             "transformers_version",
             "_name_or_path",
             "output_router_logits",
             "pretraining_tp",
             "auto_map",
             "ep_size",
             "seq_aux",
             "initializer_context_length",
             "id2label",
             "label2id",
             "return_dict",
             "output_hidden_states",
             "output_attentions",
             "chunk_size_feed_forward",
             "is_encoder_decoder",
             "problem_type",
             "model_type"},
            passed_);
    k_.field({"torch_dtype", "dtype"}, hf_.dtype, std::string("float32"));
    constexpr const char* kTypes[] = {"float32", "bfloat16", "float16"};
    if (std::ranges::find(kTypes, hf_.dtype) == std::end(kTypes)) {
      k_.refuse("torch_dtype", "float32, bfloat16 and float16 are supported");
    }
  }

  void quantization() {
    if (!k_.reads() || !k_.has("quantization_config")) return void(k_.at("quantization_config"));
    HfKeys q = k_.section("quantization_config");
    std::string method, format;
    q.field({"quant_method"}, method, std::string());
    if (method == "fp8") {
      q.only("fmt", std::string("e4m3"));
      const Json& size = q.at("weight_block_size");
      if (!size.is_array() || size.size() != 2 || !size[0].is_number_unsigned() ||
          !size[1].is_number_unsigned() || size[0] == 0 || size[1] == 0) {
        q.refuse("weight_block_size", "two sizes are expected");
      }
      hf_.quantization = HfQuantization::kFp8Blocks;
      hf_.block_rows = size[0], hf_.block_columns = size[1];
    } else if (method == "mxfp4") {
      hf_.quantization = HfQuantization::kMxfp4;
    } else {
      q.refuse("quant_method", "fp8 (blocks of e4m3) and mxfp4 are supported");
    }
    hf_.notes.push_back("the weights are stored as " + method + " and are widened");
  }

 private:
  using I = int64_t;

  // What all families but DBRX call the same.
  void sizes(I vocab, I width, I layers, I heads, I positions, double eps) {
    k_.field({"vocab_size"}, c_.vocab, vocab);
    k_.field({"hidden_size"}, c_.width, width);
    k_.field({"num_hidden_layers"}, c_.layers, layers);
    k_.field({"num_attention_heads"}, c_.heads, heads);
    k_.field({"max_position_embeddings"}, c_.max_positions, positions);
    k_.field({"rms_norm_eps"}, c_.norm.eps, eps);
    k_.field({"tie_word_embeddings"}, c_.tie_embeddings, false);
    k_.field({"attention_dropout"}, c_.attn_dropout, 0.0);
    k_.only("hidden_act", std::string("silu"));
    c_.norm.kind = hf_.family == HfFamily::kGptOss ? NormForm::kRms : NormForm::kRmsRounded;
    init_std();
    check_sizes();
  }

  void check_sizes() {
    if (!k_.reads()) return;
    if (c_.layers < 0) k_.refuse("num_hidden_layers", "must not be negative");
    require_counts(c_, k_.place());
  }

  void init_std() {
    double std = c_.init_std.value_or(0.02);
    k_.field({"initializer_range"}, std, 0.02);
    c_.init_std = std;
  }

  void kv_heads(std::optional<I> absent) {
    if (c_.kv_heads == 0) c_.kv_heads = c_.heads;
    k_.field({"num_key_value_heads"}, c_.kv_heads, absent.value_or(c_.heads));
  }

  void head_dim(I absent) {
    if (!k_.reads() && c_.head_dim == 0) {
      c_.head_dim = c_.heads > 0 ? c_.width / c_.heads : 0;
    }
    k_.field({"head_dim"}, c_.head_dim, absent);
  }

  void attention_bias(bool absent) {
    bool bias = c_.qkv_bias.value_or(c_.bias);
    k_.field({"attention_bias"}, bias, absent);
    c_.qkv_bias = c_.out_bias = bias;
  }

  // --- rope ---

  void rope(double theta) {
    if (!k_.reads()) return write_rope(k_);
    c_.rope.theta = theta;
    if (k_.has("rope_parameters")) {
      HfKeys p = k_.section("rope_parameters");
      p.field({"rope_theta"}, c_.rope.theta, theta);
      read_scaling(p);
      k_.at("rope_theta"), k_.at("rope_scaling");  // the same, said twice
      return;
    }
    k_.at("rope_parameters");
    k_.field({"rope_theta"}, c_.rope.theta, theta);
    if (k_.has("rope_scaling")) {
      HfKeys p = k_.section("rope_scaling");
      read_scaling(p);
    } else {
      k_.at("rope_scaling");
      c_.rope.scaling = RopeScaling::kNone;
    }
  }

  void read_scaling(HfKeys& p) {
    RopeConfig& r = c_.rope;
    std::string type;
    p.field({"rope_type", "type"}, type, std::string("default"));
    p.only("partial_rotary_factor", 1.0);
    const auto original = [&] {
      p.field({"original_max_position_embeddings"}, r.original_positions, c_.max_positions);
    };
    if (type == "default") {
      r.scaling = RopeScaling::kNone;
    } else if (type == "linear") {
      r.scaling = RopeScaling::kLinear;
      p.field({"factor"}, r.factor, 1.0);
    } else if (type == "llama3") {
      r.scaling = RopeScaling::kLlama3;
      p.field({"factor"}, r.factor, 1.0);
      p.field({"low_freq_factor"}, r.low_freq, 1.0);
      p.field({"high_freq_factor"}, r.high_freq, 4.0);
      original();
    } else if (type == "yarn") {
      r.scaling = RopeScaling::kYarn;
      p.field({"factor"}, r.factor, 1.0);
      p.field({"beta_fast"}, r.beta_fast, 32.0);
      p.field({"beta_slow"}, r.beta_slow, 1.0);
      p.field({"truncate"}, r.truncate, true);
      p.optional({"attention_factor"}, r.attention_factor);
      p.optional({"mscale"}, r.mscale);
      p.optional({"mscale_all_dim"}, r.mscale_all_dim);
      original();
    } else {
      p.refuse(p.has("rope_type") ? "rope_type" : "type",
               "default, linear, llama3 and yarn are supported");
    }
    const Json unknown = p.unknown();
    if (!unknown.empty()) {
      p.refuse(unknown.begin().key(), "no such key is known for the type " + type);
    }
  }

  void write_rope(HfKeys& to) const {
    const RopeConfig& r = c_.rope;
    to.at("rope_theta") = r.theta;
    Json& s = to.at("rope_scaling");
    if (r.scaling == RopeScaling::kNone) return void(s = nullptr);
    s["rope_type"] = to_text(r.scaling);
    s["factor"] = r.factor;
    if (r.scaling == RopeScaling::kLinear) return;
    s["original_max_position_embeddings"] = r.original_positions;
    if (r.scaling == RopeScaling::kLlama3) {
      s["low_freq_factor"] = r.low_freq;
      s["high_freq_factor"] = r.high_freq;
      return;
    }
    s["beta_fast"] = r.beta_fast;
    s["beta_slow"] = r.beta_slow;
    if (!r.truncate) s["truncate"] = false;
    if (r.attention_factor) s["attention_factor"] = *r.attention_factor;
    if (r.mscale) s["mscale"] = *r.mscale;
    if (r.mscale_all_dim) s["mscale_all_dim"] = *r.mscale_all_dim;
  }

  // --- routing ---

  TopkSoftmaxRouting& softmax(SoftmaxOrder order) {
    if (!std::holds_alternative<TopkSoftmaxRouting>(c_.moe.router))
      c_.moe.router.select("topk_softmax");
    auto& out = std::get<TopkSoftmaxRouting>(c_.moe.router);
    if (k_.reads()) out.order = order;
    return out;
  }

  // Theirs averages f and P over all layers first: a k / layers here (formats: three scales).
  void aux_loss(HfKeys& k, const char* name, BalanceConfig& balance, double absent) {
    const auto layers = static_cast<double>(std::max<I>(1, num_moe_layers(c_)));
    const double scale = static_cast<double>(std::max<I>(1, c_.moe.top_k)) / layers;
    double theirs =
        rounded((balance.aux_loss + balance.global_loss + balance.batched_loss) / scale);
    k.field({name}, theirs, absent);
    if (!k.reads()) return;
    balance = {};
    balance.aux_loss = theirs * scale;
  }

  // Whether the weights of a token sum to 1: softmax over the chosen logits is that over all of
  // them, divided by its sum.
  bool sums_to_one(const TopkSoftmaxRouting& router) const {
    if (router.p_norm != 0 && router.p_norm != 1) {
      k_.refuse("norm_topk_prob", "the weights' p_norm of the router has no place here but 0 or 1");
    }
    const bool over_chosen = router.order != SoftmaxOrder::kBefore && c_.moe.top_k > 1;
    return router.p_norm == 1 || over_chosen;
  }

  void norm_topk(TopkSoftmaxRouting& router) {
    bool normalised = !k_.reads() && sums_to_one(router);
    k_.field({"norm_topk_prob"}, normalised, false);
    if (k_.reads()) router.p_norm = normalised ? 1 : 0;
  }

  // The family's class knows one of the two alone.
  void always_sums_to_one(const TopkSoftmaxRouting& router, bool does) const {
    if (k_.reads() || sums_to_one(router) == does || c_.moe.experts == 1) return;
    k_.refuse("norm_topk_prob", does ? "this family divides a token's weights by their sum; the "
                                       "model's router does not (order 'before' without p_norm)"
                                     : "this family takes a token's weights as they are; the "
                                       "model's router divides them by their sum (p_norm 1, or "
                                       "order 'auto' or 'after')");
  }

  void experts(std::initializer_list<const char*> names, I count, I top_k) {
    k_.field(names, c_.moe.experts, count);
    k_.field({"num_experts_per_tok", "experts_per_token"}, c_.moe.top_k, top_k);
    if (c_.moe.experts < 1) k_.refuse(*names.begin(), "at least 1 is expected");
    if (c_.moe.top_k < 1 || c_.moe.top_k > c_.moe.experts) {
      k_.refuse("num_experts_per_tok", "1 to " + std::to_string(c_.moe.experts) + " is expected");
    }
  }

  // --- families ---

  void llama() {
    sizes(32000, 4096, 32, 32, 2048, 1e-6);
    k_.field({"intermediate_size"}, c_.ffn, I{11008});
    kv_heads({});
    head_dim(0);
    attention_bias(false);
    bool bias = c_.ffn_bias.value_or(c_.bias);
    k_.field({"mlp_bias"}, bias, false);
    c_.ffn_bias = bias;
    if (k_.reads()) c_.moe.experts = 0;
    rope(10000);
  }

  void mixtral() {
    sizes(32000, 4096, 32, 32, 131072, 1e-5);
    kv_heads(8);
    head_dim(0);
    k_.field({"intermediate_size"}, c_.moe.ffn.hidden, I{14336});
    experts({"num_local_experts", "num_experts"}, 8, 2);
    std::optional<I> window;
    if (c_.window > 0) window = c_.window;
    k_.optional({"sliding_window"}, window);
    c_.window = window.value_or(0);
    TopkSoftmaxRouting& router = softmax(SoftmaxOrder::kAfter);
    always_sums_to_one(router, true);
    k_.field({"router_jitter_noise"}, router.gate.jitter, 0.0);
    aux_loss(k_, "router_aux_loss_coef", router.balance, 0.001);
    rope(1e6);
  }

  void qwen3_moe() {
    sizes(151936, 2048, 24, 32, 32768, 1e-6);
    kv_heads(4);
    head_dim(0);
    attention_bias(false);
    c_.qk_norm = QkNorm::kHead;
    k_.field({"intermediate_size"}, c_.ffn, I{6144});
    k_.field({"moe_intermediate_size"}, c_.moe.ffn.hidden, I{768});
    experts({"num_experts", "num_local_experts"}, 128, 8);
    k_.only("use_sliding_window", false);
    k_.pass({"sliding_window", "max_window_layers"}, passed_);
    sparse_layers();
    TopkSoftmaxRouting& router = softmax(SoftmaxOrder::kBefore);
    norm_topk(router);
    aux_loss(k_, "router_aux_loss_coef", router.balance, 0.001);
    rope(10000);
  }

  void sparse_layers() {
    I step = 1;
    std::vector<I> dense;
    if (!k_.reads()) {
      for (I i = 0; i < c_.layers; ++i) {
        if (!layer_config(c_, i).moe) dense.push_back(i);
      }
    }
    k_.field({"decoder_sparse_step"}, step, I{1});
    if (step < 1) k_.refuse("decoder_sparse_step", "at least 1 is expected");
    Json& list = k_.at("mlp_only_layers");
    if (!k_.reads()) return void(list = dense);
    std::vector<bool> layers;
    for (I i = 0; i < c_.layers; ++i) layers.push_back((i + 1) % step == 0);
    for (const Json& item : list.is_array() ? list : Json::array()) {
      const I i = item.is_number_integer() ? item.get<I>() : -1;
      if (0 <= i && i < c_.layers) layers[static_cast<size_t>(i)] = false;
    }
    c_.moe.layers = layers.empty() ? "1" : pattern_of(layers);
  }

  void olmoe() {
    sizes(50304, 2048, 16, 16, 4096, 1e-5);
    kv_heads({});
    head_dim_from_width();
    attention_bias(false);
    c_.qk_norm = QkNorm::kWhole;
    k_.optional({"clip_qkv"}, c_.clip_qkv);
    k_.field({"intermediate_size"}, c_.moe.ffn.hidden, I{2048});
    experts({"num_experts", "num_local_experts"}, 64, 8);
    TopkSoftmaxRouting& router = softmax(SoftmaxOrder::kBefore);
    norm_topk(router);
    aux_loss(k_, "router_aux_loss_coef", router.balance, 0.01);
    rope(10000);
  }

  // The class has no such key; heads divide the width.
  void head_dim_from_width() {
    if (k_.reads()) c_.head_dim = 0;
  }

  void dbrx() {
    k_.field({"vocab_size"}, c_.vocab, I{32000});
    k_.field({"d_model"}, c_.width, I{2048});
    k_.field({"n_layers"}, c_.layers, I{24});
    k_.field({"n_heads"}, c_.heads, I{16});
    k_.field({"max_seq_len"}, c_.max_positions, I{2048});
    k_.field({"tie_word_embeddings"}, c_.tie_embeddings, false);
    k_.field({"resid_pdrop"}, c_.dropout, 0.0);
    k_.only("emb_pdrop", c_.dropout);
    k_.pass({"num_key_value_heads"}, passed_);
    init_std();
    check_sizes();
    c_.norm = {.kind = NormForm::kLayer, .eps = 1e-5};
    dbrx_attention();
    dbrx_experts();
  }

  void dbrx_attention() {
    HfKeys a = k_.section("attn_config");
    if (c_.kv_heads == 0) c_.kv_heads = c_.heads;
    a.field({"kv_n_heads"}, c_.kv_heads, I{1});
    a.optional({"clip_qkv"}, c_.clip_qkv);
    a.field({"attn_pdrop"}, c_.attn_dropout, 0.0);
    a.field({"rope_theta"}, c_.rope.theta, 10000.0);
    if (!k_.reads()) return;
    c_.head_dim = 0;
    // transformers 5 moves it out of the section.
    if (k_.has("rope_parameters")) {
      HfKeys p = k_.section("rope_parameters");
      p.field({"rope_theta"}, c_.rope.theta, 10000.0);
      read_scaling(p);
    }
  }

  void dbrx_experts() {
    HfKeys f = k_.section("ffn_config");
    f.field({"ffn_hidden_size"}, c_.moe.ffn.hidden, I{3584});
    f.field({"moe_num_experts"}, c_.moe.experts, I{4});
    f.field({"moe_top_k"}, c_.moe.top_k, I{1});
    if (c_.moe.experts < 1) f.refuse("moe_num_experts", "at least 1 is expected");
    if (c_.moe.top_k < 1 || c_.moe.top_k > c_.moe.experts) f.refuse("moe_top_k", "is out of range");
    Json& act = f.at("ffn_act_fn");
    if (k_.reads() && !act.is_null() && act != Json{{"name", "silu"}}) {
      f.refuse("ffn_act_fn", "{\"name\": \"silu\"} is supported");
    }
    if (!k_.reads()) act = Json{{"name", "silu"}};
    TopkSoftmaxRouting& router = softmax(SoftmaxOrder::kBefore);
    std::optional<double> jitter, norm;
    if (router.gate.jitter > 0) jitter = router.gate.jitter;
    if (router.p_norm > 0) {
      norm = router.p_norm;
    } else if (!k_.reads() && sums_to_one(router)) {
      norm = 1;
    }
    if (k_.reads() && !f.has("moe_normalize_expert_weights")) {
      f.at("moe_normalize_expert_weights") = 1.0;  // the class's default
    }
    f.optional({"moe_jitter_eps"}, jitter);
    f.optional({"moe_normalize_expert_weights"}, norm);
    router.gate.jitter = jitter.value_or(0);
    if (k_.reads()) router.p_norm = norm.value_or(0);
    aux_loss(f, "moe_loss_weight", router.balance, 0.01);
  }

  void deepseek() {
    const bool v3 = hf_.family == HfFamily::kDeepseekV3;
    v3 ? sizes(129280, 7168, 61, 128, 4096, 1e-6) : sizes(102400, 4096, 32, 32, 2048, 1e-6);
    attention_bias(false);
    if (!c_.mla) c_.mla.emplace();
    MlaConfig& m = *c_.mla;
    if (k_.reads() && k_.at("q_lora_rank").is_null() && k_.has("kv_lora_rank")) m.q_rank = 0;
    std::optional<I> q_rank;
    if (m.q_rank > 0) q_rank = m.q_rank;
    k_.optional({"q_lora_rank"}, q_rank);
    m.q_rank = q_rank.value_or(0);
    k_.field({"kv_lora_rank"}, m.kv_rank, I{512});
    k_.field({"qk_nope_head_dim"}, m.nope_dim, I{128});
    k_.field({"qk_rope_head_dim"}, m.rope_dim, I{64});
    k_.field({"v_head_dim"}, m.value_dim, I{128});
    k_.pass({"head_dim", "qk_head_dim", "num_key_value_heads", "aux_loss_alpha", "mlp_bias"},
            passed_);
    if (k_.reads()) c_.kv_heads = c_.head_dim = 0, m.eps = 1e-6;
    k_.field({"intermediate_size"}, c_.ffn, v3 ? I{18432} : I{11008});
    k_.field({"moe_intermediate_size"}, c_.moe.ffn.hidden, v3 ? I{2048} : I{1407});
    experts({"n_routed_experts", "num_local_experts"}, v3 ? 256 : 64, v3 ? 8 : 6);
    k_.field({"n_shared_experts"}, c_.moe.shared.experts, v3 ? I{1} : I{2});
    k_.field({"first_k_dense_replace"}, c_.first_dense, v3 ? I{3} : I{0});
    k_.only("moe_layer_freq", I{1});
    v3 ? deepseek_v3() : deepseek_v2();
    c_.rope.interleaved = true;
    rope(10000);
  }

  void deepseek_v3() {
    k_.only("rope_interleave", true);
    k_.only("scoring_func", std::string("sigmoid"));
    k_.only("topk_method", std::string("noaux_tc"));
    k_.only("norm_topk_prob", true);
    k_.field({"num_nextn_predict_layers"}, c_.mtp.depth, I{1});
    if (!std::holds_alternative<SigmoidBiasRouting>(c_.moe.router))
      c_.moe.router.select("sigmoid_bias");
    auto& router = std::get<SigmoidBiasRouting>(c_.moe.router);
    k_.field({"routed_scaling_factor"}, router.scale, 2.5);
    k_.field({"n_group"}, router.limit.groups, I{8});
    k_.field({"topk_group"}, router.limit.keep, I{4});
    if (k_.reads()) router.limit.top = router.limit.groups > 1 ? 2 : 0;
  }

  void deepseek_v2() {
    TopkSoftmaxRouting& router = softmax(SoftmaxOrder::kBefore);
    if (k_.reads()) router.balance = {};
    k_.only("scoring_func", std::string("softmax"));
    always_sums_to_one(router, false);
    k_.only("norm_topk_prob", false);
    k_.field({"routed_scaling_factor"}, router.scale, 1.0);
    std::string method = router.limit.groups > 1 ? "group_limited_greedy" : "greedy";
    k_.field({"topk_method"}, method, std::string("greedy"));
    const bool grouped = method == "group_limited_greedy";
    if (!grouped && method != "greedy") {
      k_.refuse("topk_method", "greedy and group_limited_greedy are supported");
    }
    std::optional<I> groups, keep;
    if (grouped) groups = router.limit.groups, keep = router.limit.keep;
    k_.optional({"n_group"}, groups);
    k_.optional({"topk_group"}, keep);
    if (k_.reads() && grouped) {
      router.limit = {.groups = groups.value_or(1), .keep = keep.value_or(1), .top = 1};
    }
  }

  void gpt_oss() {
    sizes(201088, 2880, 36, 64, 131072, 1e-5);
    kv_heads(8);
    head_dim(64);
    k_.field({"intermediate_size"}, c_.moe.ffn.hidden, I{2880});
    experts({"num_local_experts", "num_experts"}, 128, 4);
    k_.only("attention_bias", true);
    double limit = c_.moe.ffn.form.clamp.value_or(7);
    k_.field({"swiglu_limit"}, limit, 7.0);
    TopkSoftmaxRouting& router = softmax(SoftmaxOrder::kAfter);
    always_sums_to_one(router, true);
    if (k_.reads()) {
      c_.bias = c_.sinks = c_.moe.ffn.bias = router.gate.bias = true;
      c_.moe.ffn.form = {.activation = "quick_gelu", .gated = true, .clamp = limit, .offset = 1};
    }
    aux_loss(k_, "router_aux_loss_coef", router.balance, 0.001);
    gpt_oss_windows();
    gpt_oss_rope();
  }

  void gpt_oss_windows() {
    k_.pass({"initial_context_length"}, passed_);
    k_.field({"sliding_window"}, c_.window, I{128});
    Json& types = k_.at("layer_types");
    std::vector<bool> windows;
    if (!k_.reads()) {
      types = Json::array();
      if (c_.window > 0) windows = moe_layers(c_.window_layers, c_.layers);
      windows.resize(static_cast<size_t>(c_.layers), false);
      for (const bool w : windows) types.push_back(w ? "sliding_attention" : "full_attention");
      return;
    }
    if (types.is_null()) return void(c_.window_layers = "2");
    if (!types.is_array() || static_cast<I>(types.size()) != c_.layers) {
      k_.refuse("layer_types", "a list of " + std::to_string(c_.layers) + " is expected");
    }
    for (const Json& type : types) {
      if (type != "sliding_attention" && type != "full_attention") {
        k_.refuse("layer_types", "sliding_attention and full_attention are supported");
      }
      windows.push_back(type == "sliding_attention");
    }
    c_.window_layers = windows.empty() ? "2" : pattern_of(windows);
  }

  // The class's default is a scaled one.
  void gpt_oss_rope() {
    if (k_.reads() && !k_.has("rope_parameters") && !k_.has("rope_scaling")) {
      k_.at("rope_scaling") = Json{
          {"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
          {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
    }
    rope(150000);
    if (!k_.reads() && c_.rope.scaling == RopeScaling::kNone) {
      k_.at("rope_scaling") = Json{{"rope_type", "default"}};
    }
  }

  HfConfig& hf_;
  ModelConfig& c_;
  HfKeys& k_;
  Json& passed_;
};

HfFamily family_of(HfKeys& keys) {
  std::string type;
  keys.field({"model_type"}, type, std::string());
  HfFamily family{};
  if (from_text(type, family)) return family;
  keys.refuse("model_type", expectation(type, family).wanted + " are supported");
}

}  // namespace

HfConfig parse_hf_config(const std::string& text, const std::string& file) {
  // Bounded in depth and number, and no name twice, before the tree is built.
  if (parse_json(text, file, Code::kBadModelConfig).kind != Yaml::Kind::kMap) {
    fail(Code::kBadModelConfig, file, "is not a JSON object");
  }
  Json json = Json::parse(text);
  HfKeys keys(json, true, file + ": ");
  HfConfig out;
  Json passed = Json::object();
  out.family = family_of(keys);
  Family family(out, keys, passed);
  try {
    family.visit();
    family.tokens_and_type();
    family.quantization();
    require_counts(out.model, file + ": ");
  } catch (const nlohmann::json::exception& e) {
    fail(Code::kBadModelConfig, file, "has a value of the wrong sort:", e.what());
  }
  const Json unknown = keys.unknown();
  for (const auto& [name, value] : unknown.items()) {
    out.notes.push_back(file + ": the key " + name + " = " + value.dump().substr(0, 100) +
                        " is not known; it is kept for export");
  }
  out.passed = passed.dump();
  out.unknown = unknown.dump();
  return out;
}

HfConfig read_hf_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  return parse_hf_config(read_file(path, Code::kUnreadableCheckpoint, kMaxConfig), path);
}

std::string to_json(const HfConfig& config) {
  Json json = Json::object();
  json["architectures"] = Json::array({architecture(config.family)});
  json["model_type"] = to_text(config.family);
  HfConfig copy = config;
  Json passed = Json::parse(config.passed);
  passed.erase("architectures");
  passed.erase("model_type");
  HfKeys keys(json, false, "config.json: ");
  Family family(copy, keys, passed);
  family.visit();
  family.tokens_and_type();
  const Json unknown = Json::parse(config.unknown);
  for (const auto& [name, value] : unknown.items()) json[name] = value;
  return json.dump(2) + '\n';
}

HfConfig hf_config_of(const ModelConfig& model) {
  const std::optional<HfFamily> family = hf_family_of(model);
  if (!family) {
    fail(Code::kBadModelConfig, "model", "has a form that none of the families",
         expectation("", HfFamily{}).wanted, "can hold");
  }
  HfConfig out;
  out.family = *family;
  out.model = model;
  return out;
}

}  // namespace troupe
