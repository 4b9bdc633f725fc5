#include "troupe/nn/config/config.h"

#include <algorithm>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/text/near.h"
#include "troupe/nn/config/moe_pattern.h"

namespace troupe {
namespace {

// "is 0 ; it must be 1", whose number stands before a mark, as "is 0; it must be 1".
std::string without_stray_spaces(std::string line) {
  for (size_t at = 0; (at = line.find(" ; ", at)) != std::string::npos;) line.erase(at, 1);
  return line;
}

// Collects what is wrong, so that a user sees all of it at once.
class ModelFaults {
 public:
  template <class... What>
  void unless(bool holds, const char* key, const What&... what) {
    if (holds) return;
    std::ostringstream line;
    line << (text_.empty() ? "" : "\n") << "model." << key << ": " << to_text(Code::kBadValue);
    ((line << ' ' << what), ...);
    text_ += without_stray_spaces(line.str());
  }
  // What the check of a part throws.
  template <class Check>
  void part(Check&& check) {
    try {
      check();
    } catch (const Error& e) {
      text_ += (text_.empty() ? "" : "\n") + std::string(e.what());
    }
  }
  void raise() const {
    if (!text_.empty()) throw Error(text_, Code::kBadValue);
  }

 private:
  std::string text_;
};

// An upper estimate of the parameters: each layer is counted with the largest sizes that any layer
// has. In doubles, which do not overflow.
double most_params(const ModelConfig& c) {
  const auto D = static_cast<double>(c.width);
  auto heads = static_cast<double>(std::max(c.heads, c.kv_heads));
  auto ffn = static_cast<double>(c.ffn), experts = static_cast<double>(c.moe.experts);
  auto hidden = static_cast<double>(c.moe.ffn.hidden);
  for (const LayerOverride& o : c.overrides) {
    const auto take = [](double& most, const std::optional<int64_t>& value) {
      most = std::max(most, static_cast<double>(value.value_or(0)));
    };
    for (const auto& value : {o.heads, o.kv_heads}) take(heads, value);
    take(ffn, o.ffn);
    take(experts, o.experts);
    take(hidden, o.hidden);
  }
  const MlaConfig mla = c.mla.value_or(MlaConfig{});
  const DeltaConfig delta = c.delta.value_or(
      DeltaConfig{.key_heads = 0, .value_heads = 0, .key_dim = 0, .value_dim = 0, .conv = 0});
  heads = std::max(heads, 2.0 * static_cast<double>(std::max(delta.key_heads, delta.value_heads)));
  const auto ranks =
      static_cast<double>(mla.q_rank + mla.kv_rank + c.moe.ffn.lora.rank + c.lora.factors.rank);
  const auto head = static_cast<double>(
      std::max({c.head_dim, c.width, mla.nope_dim + mla.rope_dim + mla.value_dim, delta.key_dim,
                delta.value_dim}));
  const auto shared = static_cast<double>(c.moe.shared.experts) *
                      std::max(hidden, static_cast<double>(c.moe.shared.hidden));
  const double block = (D + ranks) * (4 * heads * head + ranks + 3 * ffn) +
                       3 * (D + ranks) * (experts * (hidden + ranks) + shared) + experts * D +
                       2 * D * static_cast<double>(c.moe.latent) + 2 * D * D;
  const auto rows = static_cast<double>(c.vocab + c.vocab_pad + c.max_positions);
  return static_cast<double>(c.layers + c.mtp.depth) * block + 2 * rows * D;
}

void check_counts(const ModelConfig& c, ModelFaults& f) {
  for (const CountFault& fault : counts_out_of_bounds(c, kModelBounds)) {
    f.unless(false, fault.path.c_str(), fault.what);
  }
  f.raise();
  constexpr double kMost = 1e17;  // what all that is counted in bytes and products has room for
  f.unless(most_params(c) <= kMost, "layers", "all sizes together make about", most_params(c),
           "parameters; at most", kMost, "are taken");
  f.raise();
}

void check_sizes(const ModelConfig& c, ModelFaults& f) {
  f.unless(c.layers >= 1, "layers", "is", c.layers, "; it must be 1 or more");
  f.unless(c.width >= 1, "width", "is", c.width, "; it must be 1 or more");
  f.unless(c.vocab >= 2, "vocab", "is", c.vocab, "; it must be 2 or more");
  f.unless(c.vocab_pad >= 1, "vocab_pad", "is", c.vocab_pad, "; it must be 1 or more");
  f.unless(c.ffn >= 0, "ffn", "is", c.ffn, "; it must not be below 0");
  f.unless(c.window >= 0, "window", "is", c.window, "; it must not be below 0");
  f.unless(c.max_positions >= 1, "max_positions", "is", c.max_positions, "; it must be 1 or more");
  f.unless(c.norm.eps > 0, "norm.eps", "is", c.norm.eps, "; it must be above 0");
  f.unless(!c.norm.bias || c.norm.kind == NormForm::kLayer, "norm.bias", "needs norm.kind layer");
  f.unless(0 <= c.dropout && c.dropout < 1, "dropout", "is", c.dropout, "; it must be in [0, 1)");
  f.unless(0 <= c.attn_dropout && c.attn_dropout < 1, "attn_dropout", "is", c.attn_dropout,
           "; it must be in [0, 1)");
  f.unless(!c.init_std || *c.init_std > 0, "init_std", "is", c.init_std.value_or(0),
           "; it must be above 0");
  f.unless(!c.clip_qkv || *c.clip_qkv > 0, "clip_qkv", "is", c.clip_qkv.value_or(0),
           "; it must be above 0");
  f.unless(c.first_dense >= 0 && c.first_dense <= c.layers, "first_dense", "is", c.first_dense,
           "of", c.layers, "layers");
  f.unless(c.z_loss >= 0, "z_loss", "is", c.z_loss, "; it must not be below 0");
  f.unless(c.mtp.depth >= 0, "mtp.depth", "is", c.mtp.depth, "; it must not be below 0");
  f.unless(c.mtp.weight >= 0, "mtp.weight", "is", c.mtp.weight, "; it must not be below 0");
}

void check_rope(const ModelConfig& c, ModelFaults& f) {
  const RopeConfig& r = c.rope;
  f.unless(r.theta > 1, "rope.theta", "is", r.theta, "; it must be above 1");
  f.unless(0 < r.fraction && r.fraction <= 1, "rope.fraction", "is", r.fraction,
           "; it must be in (0, 1]");
  f.unless(r.factor >= 1, "rope.factor", "is", r.factor, "; it must be 1 or more");
  f.unless(r.scaling != RopeScaling::kNone || r.factor == 1, "rope.factor", "is", r.factor,
           "and rope.scaling is none; name linear, llama3 or yarn");
  f.unless(r.original_positions >= 1, "rope.original_positions", "is", r.original_positions);
  f.unless(r.scaling != RopeScaling::kLlama3 || r.high_freq > r.low_freq, "rope.high_freq", "is",
           r.high_freq, "and low_freq is", r.low_freq, "; it must be above that");
}

void check_mla(const ModelConfig& c, ModelFaults& f) {
  if (!c.mla) return;
  const MlaConfig& m = *c.mla;
  f.unless(m.q_rank >= 0 && m.kv_rank >= 1 && m.nope_dim >= 0 && m.rope_dim >= 2 &&
               m.value_dim >= 1 && m.nope_dim + m.rope_dim >= m.value_dim,
           "mla", "q_rank", m.q_rank, "kv_rank", m.kv_rank, "nope_dim", m.nope_dim, "rope_dim",
           m.rope_dim, "value_dim", m.value_dim,
           "; ranks and dimensions must be positive, value_dim at most nope_dim + rope_dim");
  f.unless(m.rope_dim % 2 == 0, "mla.rope_dim", "is", m.rope_dim, "; it must be even");
  f.unless(c.positions == PositionForm::kRope, "mla", "needs positions: rope");
  f.unless(c.qk_norm == QkNorm::kNone && !c.clip_qkv && !c.sinks && c.window == 0, "mla",
           "goes without qk_norm, clip_qkv, sinks and window");
  f.unless(c.kv_heads == 0 || c.kv_heads == c.heads, "kv_heads", "is", c.kv_heads,
           "; with mla each of the", c.heads, "heads has its own keys: leave it out");
  f.unless(!c.bias && !c.qkv_bias.value_or(false) && !c.out_bias.value_or(false), "mla",
           "goes without biases");
}

void check_delta(const ModelConfig& c, ModelFaults& f) {
  f.unless(!c.attn_gate || !c.mla, "attn_gate",
           "is of attention with heads of its own keys:", "it goes without mla");
  for (const LoraTarget target : c.lora.targets) {
    f.unless(target != LoraTarget::kAttention || !c.lora.on() || !(c.attn_gate || c.delta),
             "lora.targets", "names attention, which has no adapters beside",
             std::string(c.delta ? "model.delta" : "model.attn_gate") + ": leave it out");
  }
  f.unless(!c.lora.bits_of(LoraTarget::kAttention) || !(c.attn_gate || c.delta),
           "lora.frozen.targets", "names attention, whose weights stay in the run's type beside",
           std::string(c.delta ? "model.delta" : "model.attn_gate") + ": leave it out");
  if (!c.delta) return;
  const DeltaConfig& d = *c.delta;
  f.unless(d.key_heads >= 1 && d.value_heads >= 1 && d.value_heads % d.key_heads == 0,
           "delta.value_heads", "is", d.value_heads, "and key_heads is", d.key_heads,
           "; both must be 1 or more, and key_heads must divide value_heads");
  f.unless(d.key_dim >= 1 && d.value_dim >= 1, "delta.key_dim", "is", d.key_dim, "and value_dim is",
           d.value_dim, "; both must be 1 or more");
  f.unless(d.conv >= 2, "delta.conv", "is", d.conv, "; it must be 2 or more");
  f.part([&] { moe_layers(d.layers, c.layers); });
}

void check_layer(const ModelConfig& c, int64_t i, ModelFaults& f) {
  const LayerConfig l = layer_config(c, i);
  f.unless(
      l.heads >= 1 && l.kv_heads >= 1 && l.heads % l.kv_heads == 0, "heads", "is", l.heads,
      "and kv_heads is", l.kv_heads, "in layer", i,
      "; kv_heads must divide heads" + (l.heads >= 1 ? near_divisors(l.heads, l.kv_heads) : ""));
  f.unless(c.mla || c.head_dim > 0 || l.heads < 1 || c.width % l.heads == 0, "head_dim",
           "is left out, and heads", l.heads, "does not divide width", c.width, "in layer",
           std::to_string(i) + near_divisors(c.width, l.heads));
  const auto turned = static_cast<int64_t>(static_cast<double>(l.head_dim) * c.rope.fraction);
  f.unless(c.mla || c.positions != PositionForm::kRope || (turned >= 2 && turned % 2 == 0),
           "head_dim", "is", l.head_dim, "and", turned, "dimensions of it turn in layer", i,
           "; that must be even and not 0");
  f.unless(l.moe || l.ffn >= 1, "ffn", "is 0, and layer", i, "is dense: give its width");
  if (l.moe) f.part([&] { validate(*l.moe, moe_shape(c, l)); });
}

// Lengths of the rows of the target's matrices in a layer, which groups with a scale divide.
std::vector<int64_t> row_lengths(const ModelConfig& c, const LayerConfig& l, LoraTarget target) {
  if (target == LoraTarget::kExperts && l.moe) {
    return {l.moe->latent > 0 ? l.moe->latent : c.width, l.moe->ffn.hidden};
  }
  if (target == LoraTarget::kShared && l.moe && l.moe->shared.experts > 0) {
    return {c.width, l.moe->shared.width_for(l.moe->ffn.hidden)};
  }
  if (target == LoraTarget::kFfn && !l.moe) return {c.width, l.ffn};
  if (target != LoraTarget::kAttention || !l.attention) return {};
  if (!c.mla) return {c.width, l.heads * l.head_dim};
  std::vector<int64_t> out = {c.width, c.mla->kv_rank, l.heads * c.mla->value_dim};
  if (c.mla->q_rank > 0) out.push_back(c.mla->q_rank);
  return out;
}

void check_row_lengths(const ModelConfig& c, LoraTarget target, ModelFaults& f) {
  const LowBitFormat format = c.lora.frozen->format;
  const int64_t group = low_bit_group(format);
  for (int64_t i = 0; i < c.layers; ++i) {
    for (const int64_t length : row_lengths(c, layer_config(c, i), target)) {
      if (length % group == 0) continue;
      return f.unless(false, "lora.frozen.format", "is", to_text(format) + ", in which", group,
                      "elements of a row share a scale; matrices of", to_text(target), "in layer",
                      i, "have rows of", length,
                      ": use a format with smaller groups (mxfp4: 32, nf4: 64), or leave",
                      to_text(target), "out of model.lora.frozen.targets");
    }
  }
}

void check_frozen(const ModelConfig& c, ModelFaults& f) {
  if (!c.lora.frozen) return;
  f.unless(c.lora.on(), "lora.frozen",
           "keeps weights in few bits, which cannot be trained, and model.lora.rank is 0: set "
           "model.lora.rank, so that adapters are trained beside them, or leave frozen out");
  if (!c.lora.on()) return;
  const std::vector<LoraTarget>& targets = c.lora.frozen->targets;
  f.unless(!targets.empty(), "lora.frozen.targets",
           "is empty; name at least one of attention, experts, shared, ffn, or leave frozen out");
  for (const LoraTarget target : targets) {
    f.unless(target != LoraTarget::kRouter, "lora.frozen.targets",
             "names router, which is small and decides where tokens go: it stays as it is, leave "
             "it out");
    f.unless(std::ranges::count(targets, target) == 1, "lora.frozen.targets", "names",
             to_text(target), "more than once");
    f.unless(has_target(c, target), "lora.frozen.targets", "names",
             to_text(target) + ", and no layer of", "the model has it: leave it out");
    check_row_lengths(c, target, f);
  }
}

void check_lora(const ModelConfig& c, ModelFaults& f) {
  const LoraConfig& factors = c.lora.factors;
  f.unless(factors.rank >= 0, "lora.rank", "is", factors.rank, "; it must be 0 (off) or more");
  f.unless(0 <= factors.dropout && factors.dropout < 1, "lora.dropout", "is", factors.dropout,
           "; it must be in [0, 1)");
  f.unless(c.lora.on() || factors.dropout == 0, "lora.dropout", "is", factors.dropout,
           "and model.lora.rank is 0, so that there is no adapter: set model.lora.rank, or leave "
           "dropout out");
  f.unless(c.lora.on() || !factors.dora, "lora.dora",
           "is true and model.lora.rank is 0, so that there is no adapter: set model.lora.rank, or "
           "leave dora out");
  check_frozen(c, f);
  if (!c.lora.on()) return;
  f.unless(factors.rank <= c.width, "lora.rank", "is", factors.rank, "and the model's width is",
           c.width, "; a larger rank than that adapts nothing more: use at most the width");
  f.unless(factors.alpha > 0, "lora.alpha", "is", factors.alpha, "; it must be above 0");
  f.unless(!c.moe.ffn.lora.on(), "lora", "and model.moe.lora both adapt the model:",
           "leave model.moe.lora out, and name experts in model.lora.targets");
  f.unless(!c.lora.targets.empty(), "lora.targets", "is empty, and model.lora.rank is",
           factors.rank, "; name at least one of attention, experts, shared, router, ffn");
  for (const LoraTarget target : c.lora.targets) {
    f.unless(std::ranges::count(c.lora.targets, target) == 1, "lora.targets", "names",
             to_text(target), "more than once");
    f.unless(has_target(c, target), "lora.targets", "names", to_text(target) + ", and no layer of",
             "the model has it: leave it out");
    const bool alone = target == LoraTarget::kExperts || target == LoraTarget::kRouter;
    f.unless(!factors.dora || !alone, "lora.dora", "is true and model.lora.targets names",
             to_text(target) + ", which has no magnitudes: leave it out of targets, or dora");
  }
  const auto* const biased = std::get_if<SigmoidBiasRouting>(&c.moe.router);
  f.unless(c.moe.experts == 0 || biased == nullptr || biased->bias_rate == 0,
           "moe.router.bias_rate", "is", biased == nullptr ? 0 : biased->bias_rate,
           ", which moves a bias of the router in each step; with model.lora the base stays as it",
           "is: set it to 0");
}

void check_overrides(const ModelConfig& c, ModelFaults& f) {
  for (const LayerOverride& o : c.overrides) {
    f.unless(!o.layers.empty(), "overrides", "an entry names no layers");
    for (const int64_t i : o.layers) {
      f.unless(0 <= i && i < c.layers, "overrides", "an entry names layer", i, "of", c.layers);
    }
    f.unless(!o.experts || *o.experts == 0 || c.moe.experts > 0, "overrides",
             "an entry gives experts, and model.moe says nothing of them");
    f.unless(!o.ffn || *o.ffn >= 1, "overrides", "an entry gives ffn", o.ffn.value_or(0));
    f.unless(!o.window || *o.window >= 0, "overrides", "an entry gives window",
             o.window.value_or(0));
  }
}

void apply(const LayerOverride& o, LayerConfig& l, const MoeConfig& moe) {
  l.heads = o.heads.value_or(l.heads);
  l.kv_heads =
      o.kv_heads.value_or(o.heads && !o.kv_heads ? std::min(l.kv_heads, *o.heads) : l.kv_heads);
  l.ffn = o.ffn.value_or(l.ffn);
  l.window = o.window.value_or(l.window);
  l.attention = o.attention;
  if (o.experts) l.moe = *o.experts > 0 ? std::optional(l.moe.value_or(moe)) : std::nullopt;
  if (!l.moe) return;
  l.moe->experts = o.experts.value_or(l.moe->experts);
  l.moe->top_k = o.top_k.value_or(l.moe->top_k);
  l.moe->ffn.hidden = o.hidden.value_or(l.moe->ffn.hidden);
}

// Counts in the first `end` layers what layer_config decides, without making all of them.
int64_t count_moe_layers(const ModelConfig& c, int64_t end) {
  std::vector<bool> is_moe(c.layers, false);
  if (c.moe.experts > 0) {
    is_moe = moe_layers(c.moe.layers, c.layers);
    std::fill_n(is_moe.begin(), c.first_dense, false);
  }
  for (const LayerOverride& o : c.overrides) {
    for (const int64_t i : o.layers) {
      if (o.experts && 0 <= i && i < c.layers) is_moe[i] = *o.experts > 0;
    }
  }
  return std::count(is_moe.begin(), is_moe.begin() + end, true);
}

// The model's own settings reach into the MoE layer.
MoeConfig resolved(const ModelConfig& c) {
  MoeConfig moe = c.moe;
  if (c.init_std) {
    moe.ffn.init.std = *c.init_std;
    if (GateConfig* const gate = gate_of(moe.router)) gate->std = *c.init_std;
  }
  if (c.lora.on()) {
    if (!moe.ffn.lora.on()) moe.ffn.lora = c.lora.of(LoraTarget::kExperts);
    moe.shared.lora = c.lora.of(LoraTarget::kShared);
    moe.ffn.low_bit = c.lora.bits_of(LoraTarget::kExperts);
    moe.shared.low_bit = c.lora.bits_of(LoraTarget::kShared);
    if (GateConfig* const gate = gate_of(moe.router)) gate->lora = c.lora.of(LoraTarget::kRouter);
  }
  if (!c.scaled_init && !moe.ffn.init.down_std) moe.ffn.init.down_std = moe.ffn.init.std;
  return moe;
}

}  // namespace

LayerConfig layer_config(const ModelConfig& c, int64_t layer) {
  const bool predictor = layer >= c.layers;  // an MTP block is as the last layer
  const int64_t i = predictor ? c.layers - 1 : layer;
  LayerConfig l{.index = layer,
                .heads = c.heads,
                .kv_heads = c.kv_heads > 0 ? c.kv_heads : c.heads,
                .ffn = c.ffn};
  l.delta = c.delta && is_in_pattern(c.delta->layers, i, c.layers);
  if (c.window > 0 && is_in_pattern(c.window_layers, i, c.layers)) l.window = c.window;
  const MoeConfig moe = resolved(c);
  if (moe.experts > 0 && i >= c.first_dense && is_in_pattern(moe.layers, i, c.layers)) l.moe = moe;
  for (const LayerOverride& o : c.overrides) {
    if (std::find(o.layers.begin(), o.layers.end(), i) != o.layers.end()) apply(o, l, moe);
  }
  l.delta = l.delta && l.attention;
  l.head_dim = c.mla                           ? c.mla->nope_dim + c.mla->rope_dim
               : c.head_dim > 0 || l.heads < 1 ? c.head_dim
                                               : c.width / l.heads;
  return l;
}

std::vector<MoeUnit> moe_units(const ModelConfig& config) {
  std::vector<MoeUnit> out;
  for (int64_t i = 0; i < config.layers + config.mtp.depth; ++i) {
    const LayerConfig layer = layer_config(config, i);
    if (layer.moe) out.push_back({i + 1, *layer.moe});
  }
  return out;
}

bool has_target(const ModelConfig& c, LoraTarget target) {
  for (int64_t i = 0; i < c.layers; ++i) {
    const LayerConfig l = layer_config(c, i);
    const bool here = target == LoraTarget::kAttention ? l.attention
                      : target == LoraTarget::kFfn     ? !l.moe
                      : target == LoraTarget::kShared  ? l.moe && l.moe->shared.experts > 0
                      : target == LoraTarget::kExperts ? l.moe.has_value()
                                                       : l.moe && gate_of(l.moe->router) != nullptr;
    if (here) return true;
  }
  return false;
}

bool has_adapters(const ModelConfig& c) {
  return c.lora.on() || c.moe.ffn.lora.on();
}

int64_t num_moe_layers(const ModelConfig& c) {
  return count_moe_layers(c, c.layers);
}

MoeShape moe_shape(const ModelConfig& c, const LayerConfig& l, int64_t group_ranks) {
  return {.width = c.width,
          .layers = c.layers,
          .moe_layers = num_moe_layers(c),
          .moe_index = count_moe_layers(c, std::min(l.index, c.layers)),
          .vocab = c.vocab,
          .group_ranks = group_ranks};
}

int64_t padded_vocab(const ModelConfig& c) {
  return (c.vocab + c.vocab_pad - 1) / c.vocab_pad * c.vocab_pad;
}

void validate(const ModelConfig& c) {
  ModelFaults f;
  check_counts(c, f);
  check_sizes(c, f);
  check_rope(c, f);
  check_mla(c, f);
  check_delta(c, f);
  f.raise();  // what follows divides by these
  check_overrides(c, f);
  f.part([&] { moe_layers(c.window_layers, c.layers); });
  f.part([&] { moe_layers(c.moe.layers, c.layers); });
  f.raise();
  for (int64_t i = 0; i < c.layers; ++i) {
    check_layer(c, i, f);
    f.raise();  // one layer's faults are mostly those of all
  }
  check_lora(c, f);
  f.raise();
}

}  // namespace troupe
