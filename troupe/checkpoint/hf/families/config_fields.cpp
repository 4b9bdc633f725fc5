#include "troupe/checkpoint/hf/families/config_fields.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/nn/config/moe_pattern.h"
#include "troupe/nn/moe/balance_forms.h"

namespace troupe {
namespace {

// Twelve digits: a coefficient that was converted and back again is the one that was written.
double rounded(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.12g", x);
  return std::strtod(text, nullptr);
}

}  // namespace

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

void ConfigFields::require_bounds() const {
  const auto faults = counts_out_of_bounds(config.model, kModelBounds);
  if (faults.empty()) return;
  const void* wrong = nullptr;
  detail::for_each_value<AtMost>(config.model, "",
                                 [&](const std::string& path, const auto& value, const AtMost*) {
                                   if (path == faults[0].path) wrong = &value;
                                 });
  fail(Code::kBadModelConfig, keys.place_of(wrong, "model." + faults[0].path), faults[0].what);
}

void ConfigFields::at_least_one(const int64_t& size, const char* ours) const {
  if (size >= 1) return;
  fail(Code::kBadModelConfig, keys.place_of(&size, ours),
       "is " + std::to_string(size) + "; it must be 1 or more");
}

// What all families but DBRX call the same.
void ConfigFields::sizes(const Sizes& absent) {
  keys.field({"vocab_size"}, config.model.vocab, absent.vocab);
  keys.field({"hidden_size"}, config.model.width, absent.width);
  keys.field({"num_hidden_layers"}, config.model.layers, absent.layers);
  keys.field({"num_attention_heads"}, config.model.heads, absent.heads);
  keys.field({"max_position_embeddings"}, config.model.max_positions, absent.positions);
  keys.field({"rms_norm_eps"}, config.model.norm.eps, absent.eps);
  keys.field({"tie_word_embeddings"}, config.model.tie_embeddings, false);
  keys.field({"attention_dropout"}, config.model.attn_dropout, 0.0);
  keys.only("hidden_act", std::string("silu"));
  config.model.norm.kind = config.family->form.norm;
  init_std();
  check_sizes();
}

void ConfigFields::check_sizes() {
  if (!keys.reads()) return;
  const ModelConfig& c = config.model;
  require_bounds();
  at_least_one(c.layers, "model.layers");
  at_least_one(c.width, "model.width");
  at_least_one(c.heads, "model.heads");
  at_least_one(c.vocab, "model.vocab");
  at_least_one(c.max_positions, "model.max_positions");
}

void ConfigFields::check_layer_sizes() {
  const ModelConfig& c = config.model;
  require_bounds();
  if (c.first_dense > c.layers) {
    fail(Code::kBadModelConfig, keys.place_of(&c.first_dense, "model.first_dense"), "is",
         c.first_dense, "of", c.layers, "layers");
  }
  if (c.mla) {
    at_least_one(c.mla->kv_rank, "model.mla.kv_rank");
    at_least_one(c.mla->rope_dim, "model.mla.rope_dim");
    at_least_one(c.mla->value_dim, "model.mla.value_dim");
  }
  const int64_t with_experts = num_moe_layers(c);
  if (with_experts < c.layers) at_least_one(c.ffn, "model.ffn");
  if (with_experts == 0) return;
  at_least_one(c.moe.ffn.hidden, "model.moe.hidden");
  if (c.moe.shared.experts > 0 && c.moe.shared.width_for(c.moe.ffn.hidden) < 1) {
    at_least_one(c.moe.shared.hidden, "model.moe.shared.hidden");
  }
  // Each is an entry of a table or two: twelve times what any published model has.
  constexpr int64_t kMostExperts = 1 << 18;
  if (with_experts * c.moe.experts > kMostExperts) {
    fail(Code::kBadModelConfig, keys.place_of(&c.moe.experts, "model.moe.experts"), "is",
         c.moe.experts, "in", with_experts, "layers; at most", kMostExperts,
         "experts in all of them are taken");
  }
}

void ConfigFields::init_std() {
  double std = config.model.init_std.value_or(0.02);
  keys.field({"initializer_range"}, std, 0.02);
  config.model.init_std = std;
}

void ConfigFields::kv_heads(std::optional<int64_t> absent) {
  if (config.model.kv_heads == 0) config.model.kv_heads = config.model.heads;
  keys.field({"num_key_value_heads"}, config.model.kv_heads, absent.value_or(config.model.heads));
  at_least_one(config.model.kv_heads, "model.kv_heads");
}

void ConfigFields::head_dim(int64_t absent) {
  if (!keys.reads() && config.model.head_dim == 0) {
    config.model.head_dim = config.model.heads > 0 ? config.model.width / config.model.heads : 0;
  }
  keys.field({"head_dim"}, config.model.head_dim, absent);
}

void ConfigFields::head_dim_from_width() {
  if (keys.reads()) config.model.head_dim = 0;
}

void ConfigFields::attention_bias(bool absent) {
  bool bias = config.model.qkv_bias.value_or(config.model.bias);
  keys.field({"attention_bias"}, bias, absent);
  config.model.qkv_bias = config.model.out_bias = bias;
}

void ConfigFields::latent_attention(const MlaConfig& absent) {
  ModelConfig& c = config.model;
  attention_bias(false);
  if (!c.mla) c.mla.emplace();
  MlaConfig& m = *c.mla;
  std::optional<int64_t> q_rank;
  if (m.q_rank > 0) q_rank = m.q_rank;
  keys.optional({"q_lora_rank"}, q_rank);
  m.q_rank = q_rank.value_or(0);
  keys.field({"kv_lora_rank"}, m.kv_rank, absent.kv_rank);
  keys.field({"qk_nope_head_dim"}, m.nope_dim, absent.nope_dim);
  keys.field({"qk_rope_head_dim"}, m.rope_dim, absent.rope_dim);
  keys.field({"v_head_dim"}, m.value_dim, absent.value_dim);
  keys.pass({"head_dim", "qk_head_dim", "num_key_value_heads"}, passed);
  // It has a key and a value for each head; the classes' default is another number.
  if (!keys.reads()) keys.at("num_key_value_heads") = c.heads;
  if (keys.reads()) c.kv_heads = c.head_dim = 0, m.eps = 1e-6;
  c.rope.interleaved = true;
}

std::optional<std::vector<bool>> ConfigFields::words_of_layers(const char* name,
                                                               const TwoWords& words,
                                                               const std::vector<bool>& layers) {
  Json& list = keys.at(name);
  if (!keys.reads()) {
    list = Json::array();
    for (const bool first : layers) list.push_back(first ? words.first : words.second);
    return layers;
  }
  if (list.is_null()) return {};
  if (!list.is_array() || std::ssize(list) != config.model.layers) {
    keys.refuse(name, "a list of " + std::to_string(config.model.layers) + " is expected");
  }
  std::vector<bool> out;
  for (const Json& word : list) {
    if (word != words.first && word != words.second) {
      keys.refuse(name, std::string(words.first) + " and " + words.second + " are supported");
    }
    out.push_back(word == words.first);
  }
  return out;
}

bool ConfigFields::layer_types() {
  ModelConfig& c = config.model;
  std::vector<bool> windows;
  if (!keys.reads()) {
    if (c.window > 0) windows = moe_layers(c.window_layers, c.layers);
    windows.resize(static_cast<size_t>(c.layers), false);
  }
  const auto read =
      words_of_layers("layer_types", {"sliding_attention", "full_attention"}, windows);
  if (!read) return false;
  if (keys.reads() && !read->empty()) c.window_layers = pattern_of(*read);
  return true;
}

void ConfigFields::qkv_bias_alone(const char* name, bool absent) {
  bool bias = config.model.qkv_bias.value_or(config.model.bias);
  keys.field({name}, bias, absent);
  if (keys.reads()) config.model.qkv_bias = bias, config.model.out_bias = false;
}

int64_t ConfigFields::window_size(bool used, int64_t absent) {
  const bool missing = keys.reads() && keys.is_missing("sliding_window");
  std::optional<int64_t> window;
  if (used) window = config.model.window;
  keys.optional({"sliding_window"}, window);
  return missing ? absent : window.value_or(0);
}

void ConfigFields::sliding_window(int64_t absent, int64_t absent_first) {
  ModelConfig& c = config.model;
  bool used = c.window > 0;
  keys.field({"use_sliding_window"}, used, false);
  const int64_t window = window_size(used, absent);
  if (!keys.reads()) return void(layer_types());
  std::optional<int64_t> first;
  keys.optional({"max_window_layers"}, first);
  c.window = used ? window : 0;
  c.window_layers = "1";
  if (layer_types() || c.window == 0) return;
  std::vector<bool> windows;
  for (int64_t i = 0; i < c.layers; ++i) windows.push_back(i >= first.value_or(absent_first));
  if (!windows.empty()) c.window_layers = pattern_of(windows);
}

void ConfigFields::sparse_layers() {
  ModelConfig& c = config.model;
  int64_t step = 1;
  std::vector<int64_t> dense;
  if (!keys.reads()) {
    for (int64_t i = 0; i < c.layers; ++i) {
      if (!layer_config(c, i).moe) dense.push_back(i);
    }
  }
  keys.field({"decoder_sparse_step"}, step, int64_t{1});
  if (step < 1) keys.refuse("decoder_sparse_step", "at least 1 is expected");
  Json& list = keys.at("mlp_only_layers");
  if (!keys.reads()) return void(list = dense);
  std::vector<bool> layers;
  for (int64_t i = 0; i < c.layers; ++i) layers.push_back((i + 1) % step == 0);
  for (const Json& item : list.is_array() ? list : Json::array()) {
    const int64_t i = item.is_number_integer() ? item.get<int64_t>() : -1;
    if (0 <= i && i < c.layers) layers[static_cast<size_t>(i)] = false;
  }
  c.moe.layers = layers.empty() ? "1" : pattern_of(layers);
}

void ConfigFields::sparse_experts(int64_t count, int64_t top_k) {
  experts({"num_experts", "num_local_experts"}, count, top_k);
  keys.only("use_sliding_window", false);
  keys.pass({"sliding_window", "max_window_layers"}, passed);
  sparse_layers();
  TopkSoftmaxRouting& router = softmax(SoftmaxOrder::kBefore);
  norm_topk(router);
  aux_loss(keys, "router_aux_loss_coef", router.balance, 0.001);
}

void ConfigFields::gated_shared_expert(int64_t absent) {
  MoeConfig& moe = config.model.moe;
  int64_t width = moe.shared.width_for(moe.ffn.hidden);
  keys.field({"shared_expert_intermediate_size"}, width, absent);
  if (!keys.reads()) return;
  if (width < 1) keys.refuse("shared_expert_intermediate_size", "at least 1 is expected");
  moe.shared.experts = 1, moe.shared.hidden = width;
  moe.shared.form = SharedForm::kGate;
}

void ConfigFields::rope_fraction(HfKeys& p, double absent) {
  if (!config.family->form.partial_rope) return p.only("partial_rotary_factor", 1.0);
  p.field({"partial_rotary_factor"}, config.model.rope.fraction, absent);
}

void ConfigFields::no_padding() {
  if (!keys.reads() && !passed.contains("pad_token_id")) keys.at("pad_token_id") = nullptr;
}

SigmoidBiasRouting& ConfigFields::biased_router(IndependentScore score) {
  if (!std::holds_alternative<SigmoidBiasRouting>(config.model.moe.router))
    config.model.moe.router.select("sigmoid_bias");
  auto& out = std::get<SigmoidBiasRouting>(config.model.moe.router);
  if (keys.reads()) out.score = score;
  return out;
}

void ConfigFields::sigmoid_router(double scale, int64_t groups, int64_t keep) {
  SigmoidBiasRouting& router = biased_router(IndependentScore::kSigmoid);
  keys.field({"routed_scaling_factor"}, router.scale, scale);
  keys.field({"n_group"}, router.limit.groups, groups);
  keys.field({"topk_group"}, router.limit.keep, keep);
  if (keys.reads()) router.limit.top = router.limit.groups > 1 ? 2 : 0;
}

void ConfigFields::rope(double theta, double fraction) {
  if (!keys.reads()) return write_rope(keys);
  config.model.rope.theta = theta;
  if (config.family->form.partial_rope) {
    rope_fraction(keys, fraction);
    fraction = config.model.rope.fraction;
  }
  if (keys.has("rope_parameters")) {
    HfKeys p = keys.section("rope_parameters");
    p.field({"rope_theta"}, config.model.rope.theta, theta);
    rope_fraction(p, fraction);
    read_scaling(p);
    keys.at("rope_theta"), keys.at("rope_scaling");  // the same, said twice
    return;
  }
  keys.at("rope_parameters");
  keys.field({"rope_theta"}, config.model.rope.theta, theta);
  if (keys.has("rope_scaling")) {
    HfKeys p = keys.section("rope_scaling");
    rope_fraction(p, fraction);
    read_scaling(p);
  } else {
    keys.at("rope_scaling");
    config.model.rope.scaling = RopeScaling::kNone;
  }
}

void ConfigFields::read_scaling(HfKeys& p) {
  RopeConfig& r = config.model.rope;
  std::string type;
  p.field({"rope_type", "type"}, type, std::string("default"));
  const auto original = [&] {
    p.field({"original_max_position_embeddings"}, r.original_positions, config.model.max_positions);
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

void ConfigFields::write_rope(HfKeys& to) const {
  const RopeConfig& r = config.model.rope;
  to.at("rope_theta") = r.theta;
  if (config.family->form.partial_rope) to.at("partial_rotary_factor") = r.fraction;
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

TopkSoftmaxRouting& ConfigFields::softmax(SoftmaxOrder order) {
  if (!std::holds_alternative<TopkSoftmaxRouting>(config.model.moe.router))
    config.model.moe.router.select("topk_softmax");
  auto& out = std::get<TopkSoftmaxRouting>(config.model.moe.router);
  if (keys.reads()) out.order = order;
  return out;
}

// Theirs pools f and P over all layers first (nn/moe/balance_forms.h). Ours are coefficients of two
// forms: a loss of each layer, and the mean over layers.
void ConfigFields::aux_loss(HfKeys& k, const char* name, BalanceConfig& balance, double absent) {
  using enum BalanceForm;
  const int64_t layers = std::max<int64_t>(1, num_moe_layers(config.model));
  const int64_t top_k = std::max<int64_t>(1, config.model.moe.top_k);
  const auto converted = [&](double coefficient, BalanceForm from, BalanceForm to) {
    return convert_coefficient(coefficient, from, to, layers, top_k);
  };
  double theirs = rounded(converted(balance.aux_loss + balance.global_loss, kTroupe, kHuggingFace) +
                          converted(balance.batched_loss, kMegaBlocks, kHuggingFace));
  k.field({name}, theirs, absent);
  if (!k.reads()) return;
  balance = {};
  balance.aux_loss = converted(theirs, kHuggingFace, kTroupe);
}

bool ConfigFields::sums_to_one(const TopkSoftmaxRouting& router) const {
  if (router.p_norm != 0 && router.p_norm != 1) {
    keys.refuse("norm_topk_prob", "the weights' p_norm of the router has no place here but 0 or 1");
  }
  return router.sums_to_one(config.model.moe.top_k);
}

void ConfigFields::norm_topk(TopkSoftmaxRouting& router) {
  bool normalized = !keys.reads() && sums_to_one(router);
  keys.field({"norm_topk_prob"}, normalized, false);
  if (keys.reads()) router.p_norm = normalized ? 1 : 0;
}

void ConfigFields::always_sums_to_one(const TopkSoftmaxRouting& router, bool does) const {
  if (keys.reads() || sums_to_one(router) == does || config.model.moe.experts == 1) return;
  keys.refuse("norm_topk_prob", does ? "this family divides a token's weights by their sum; the "
                                       "model's router does not (order 'before' without p_norm)"
                                     : "this family takes a token's weights as they are; the "
                                       "model's router divides them by their sum (p_norm 1, or "
                                       "order 'auto' or 'after')");
}

void ConfigFields::experts(std::initializer_list<const char*> names, int64_t count, int64_t top_k) {
  keys.field(names, config.model.moe.experts, count);
  keys.field({"num_experts_per_tok", "experts_per_token"}, config.model.moe.top_k, top_k);
  if (config.model.moe.experts < 1) keys.refuse(*names.begin(), "at least 1 is expected");
  if (config.model.moe.top_k < 1 || config.model.moe.top_k > config.model.moe.experts) {
    keys.refuse("num_experts_per_tok",
                "1 to " + std::to_string(config.model.moe.experts) + " is expected");
  }
}

}  // namespace troupe
