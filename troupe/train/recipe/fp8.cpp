#include "troupe/train/recipe/fp8.h"

#include <algorithm>

#include "troupe/nn/attention/attention_module.h"
#include "troupe/nn/attention/mla.h"
#include "troupe/nn/ffn/dense_ffn.h"
#include "troupe/nn/model/model.h"
#include "troupe/nn/moe/moe_layer.h"
#include "troupe/ops/moe_ffn/fp8_emulated.h"
#include "troupe/ops/moe_ffn/moe_ffn_fp8_sm90.h"
#include "troupe/train/recipe/experts_kernels.h"

namespace troupe {
namespace {

std::string layer_fault(const MoeConfig& moe, int64_t width) {
  const int64_t seen = moe.latent > 0 ? moe.latent : width;
  const ExpertsConfig& ffn = moe.ffn;
  const std::string sizes = "experts see a width of " + std::to_string(seen) + " and are " +
                            std::to_string(ffn.hidden) + " wide";
  if (seen < kFp8Tile || ffn.hidden < kFp8Tile) {
    return sizes + "; both must be at least " + std::to_string(kFp8Tile) +
           ". Use wider experts, or leave fp8 out";
  }
  if (ffn.impl != ExpertsImpl::kGrouped) return "needs model.moe.impl: grouped";
  if (ffn.bias) return "does not take experts with biases: set model.moe.bias: false";
  if (ffn.lora.on()) {
    return "does not take LoRA adapters of experts: leave experts out of model.lora.targets, or "
           "set "
           "model.moe.lora.rank: 0";
  }
  if (ffn.recompute == Recompute::kExpert) {
    return "does not take model.moe.recompute: expert; layer recomputes more, none less";
  }
  if (ffn.quantize.inputs >= 0 || ffn.quantize.rematerialize >= 0) {
    return "does not take model.moe.quantize: leave one of the two out";
  }
  return {};
}

std::string on_ranks(int64_t ranks) {
  return ranks == 1 ? "" : " on each of " + std::to_string(ranks) + " tensor ranks";
}

std::string sides_of(const MlaProduct& p) {
  return std::string(p.name) + " (" + std::to_string(p.out) + " x " + std::to_string(p.in) + ")";
}

// Some of them are enough: the others stay as they are, which the line names.
std::string latent_fault(const ModelConfig& model, const LayerConfig& layer, int64_t ranks) {
  std::string all;
  bool fits = false;
  for (const MlaProduct& p : mla_products(model, layer)) {
    const MlaProduct own = p.of_rank(ranks);
    if (p.fits_fp8() && !own.fits_fp8()) {
      return "attention: " + sides_of(own) + on_ranks(ranks) +
             " has a side that is no multiple of " + std::to_string(kFp8Tile) +
             ". Use fewer ranks of parallel.tensor, or attention: false";
    }
    fits = fits || p.fits_fp8();
    all += (all.empty() ? "" : ", ") + sides_of(p);
  }
  if (fits) return {};
  return "attention: no projection of model.mla has two sides that are multiples of " +
         std::to_string(kFp8Tile) + ": " + all +
         ". Use other ranks and head dimensions, or attention: false";
}

// A projection's own rows and columns: groups that share a scale do not reach from one to another.
std::string attention_fault(const ModelConfig& model, const LayerConfig& layer, int64_t ranks) {
  if (layer.delta || model.attn_gate) {
    return std::string("attention: ") + (layer.delta ? "model.delta" : "model.attn_gate") +
           " has no products in 8 bits: use attention: false";
  }
  if (model.mla) return latent_fault(model, layer, ranks);
  const int64_t heads = layer.heads / ranks, keys = std::max<int64_t>(1, layer.kv_heads / ranks);
  for (const int64_t size : {model.width, heads * layer.head_dim, keys * layer.head_dim}) {
    if (size % kFp8Tile == 0) continue;
    return "attention: q, k, v and out have a side of " + std::to_string(size) + on_ranks(ranks) +
           "; each must be a multiple of " + std::to_string(kFp8Tile) +
           ". Use other heads, or attention: false";
  }
  return {};
}

// Hidden width of the layer's dense feed-forward or shared expert; 0: it has none.
int64_t ffn_hidden(const LayerConfig& layer) {
  return layer.moe ? layer.moe->shared.width_for(layer.moe->ffn.hidden) : layer.ffn;
}

std::string ffn_fault(const ModelConfig& model, const LayerConfig& layer, const Fp8Cut& cut) {
  if (!layer.moe && model.ffn_bias.value_or(model.bias)) {
    return "ffn: dense feed-forwards with biases have no products in 8 bits: set model.ffn_bias: "
           "false, or ffn: false";
  }
  const int64_t hidden = ffn_hidden(layer), ranks = layer.moe ? cut.shared : cut.tensor;
  const LoraTarget target = layer.moe ? LoraTarget::kShared : LoraTarget::kFfn;
  if (model.lora.of(target).on()) {
    return "ffn: does not take LoRA adapters: leave " + to_text(target) +
           " out of model.lora.targets, or use ffn: false";
  }
  const std::string what = layer.moe ? "ffn: the shared expert" : "ffn: the dense feed-forward";
  if (model.width % kFp8Tile != 0) {
    return what + " sees a width of " + std::to_string(model.width) +
           ", which must be a multiple of " + std::to_string(kFp8Tile) +
           ". Use another width, or ffn: false";
  }
  if (hidden % (ranks * kFp8Tile) == 0) return {};
  return what + " of layer " + std::to_string(layer.index) + " is " + std::to_string(hidden) +
         " wide, which must be a multiple of " + std::to_string(ranks * kFp8Tile) +
         (ranks > 1 ? ": of " + std::to_string(kFp8Tile) + on_ranks(ranks) : std::string()) +
         ". Use another width, or ffn: false";
}

bool skipped(const Fp8Config& config, const ModelConfig& model, int64_t layer) {
  return layer < config.skip_first || layer >= model.layers - config.skip_last;
}

Fp8Options options_of(const Fp8Config& config) {
  return {.weight_grad = config.weight_grad == Fp8WeightGrad::kFp8,
          .emulate = config.emulate,
          .recipe = config.recipe,
          .history_steps = config.history};
}

bool any_of(const std::vector<bool>& layers) {
  return std::ranges::find(layers, true) != layers.end();
}

// The first fault of the layers that `layers` names.
template <class FaultOf>
std::string first_fault(const ModelConfig& model, const std::vector<bool>& layers,
                        const FaultOf& fault_of) {
  for (int64_t i = 0; i < model.layers; ++i) {
    if (!layers[static_cast<size_t>(i)]) continue;
    std::string fault = fault_of(layer_config(model, i));
    if (!fault.empty()) return fault;
  }
  return {};
}

}  // namespace

std::vector<std::string> fp8_faults(const Fp8Config& config, const ModelConfig& model,
                                    const Fp8Cut& cut) {
  const int64_t first = config.skip_first, last = config.skip_last;
  if (first < 0 || last < 0) return {"skip_first and skip_last must not be negative"};
  if (first > model.layers || last > model.layers - first) {
    return {"skip_first " + std::to_string(first) + " and skip_last " + std::to_string(last) +
            " leave none of the model's " + std::to_string(model.layers) + " layers"};
  }
  if (config.history < 1) {
    return {"history is " + std::to_string(config.history) + "; it must be 1 step or more"};
  }
  if (config.recipe != Fp8Recipe::kDelayed && config.history != kFp8HistorySteps) {
    return {"history is of recipe delayed, and the recipe is " + to_text(config.recipe) +
            ": leave it out, or take recipe delayed"};
  }
  const std::vector<bool> experts = fp8_layers(config, model);
  const std::vector<bool> projections = fp8_attention_layers(config, model);
  const std::vector<bool> ffns = fp8_ffn_layers(config, model);
  if (config.ffn && !any_of(ffns)) {
    return {
        "ffn: no layer outside the skipped ones has a dense feed-forward or a shared expert: "
        "use ffn: false"};
  }
  if (!any_of(experts) && !any_of(projections) && !any_of(ffns)) {
    return {
        "no MoE layer would compute in 8 bits: the model has none outside the skipped ones. "
        "attention: true and ffn: true take layers without experts"};
  }
  for (const std::string& fault :
       {first_fault(model, experts,
                    [&](const LayerConfig& l) { return layer_fault(*l.moe, model.width); }),
        first_fault(model, projections,
                    [&](const LayerConfig& l) { return attention_fault(model, l, cut.tensor); }),
        first_fault(model, ffns, [&](const LayerConfig& l) { return ffn_fault(model, l, cut); })}) {
    if (!fault.empty()) return {fault};
  }
  return {};
}

std::vector<bool> fp8_layers(const Fp8Config& config, const ModelConfig& model) {
  std::vector<bool> out(static_cast<size_t>(model.layers));
  for (int64_t i = 0; i < model.layers; ++i) {
    out[static_cast<size_t>(i)] =
        !skipped(config, model, i) && layer_config(model, i).moe.has_value();
  }
  return out;
}

std::vector<bool> fp8_attention_layers(const Fp8Config& config, const ModelConfig& model) {
  std::vector<bool> out(static_cast<size_t>(model.layers));
  for (int64_t i = 0; i < model.layers; ++i) {
    out[static_cast<size_t>(i)] =
        config.attention && !skipped(config, model, i) && layer_config(model, i).attention;
  }
  return out;
}

std::vector<bool> fp8_ffn_layers(const Fp8Config& config, const ModelConfig& model) {
  std::vector<bool> out(static_cast<size_t>(model.layers));
  for (int64_t i = 0; i < model.layers; ++i) {
    out[static_cast<size_t>(i)] =
        config.ffn && !skipped(config, model, i) && ffn_hidden(layer_config(model, i)) > 0;
  }
  return out;
}

void use_fp8(const Fp8Config& config, Model& model) {
  const std::vector<bool> layers = fp8_layers(config, model.config());
  const std::vector<bool> ffns = fp8_ffn_layers(config, model.config());
  model.for_each_moe([&](int64_t unit, MoeLayer& moe) {
    const auto layer = static_cast<size_t>(unit - 1);
    if (layer >= layers.size() || !layers[layer]) return;  // MTP modules stay as they are
    moe.experts().compute_in_fp8(options_of(config));
    if (ffns[layer]) moe.shared()->compute_in_fp8(options_of(config));
  });
  model.for_each_dense_ffn([&](int64_t layer, DenseFfn& ffn) {
    if (ffns[static_cast<size_t>(layer)]) ffn.compute_in_fp8(options_of(config));
  });
  const std::vector<bool> projections = fp8_attention_layers(config, model.config());
  model.for_each_attention([&](int64_t layer, AttentionModule& attention) {
    if (projections[static_cast<size_t>(layer)]) attention.compute_in_fp8(options_of(config));
  });
}

std::vector<Fp8History*> fp8_histories(Model& model) {
  std::vector<Fp8History*> out;
  const VisitFp8 add = [&](Fp8Products& products) {
    const auto& options = products.options();
    if (options && options->history != nullptr) out.push_back(options->history.get());
  };
  model.for_each_moe([&](int64_t, MoeLayer& moe) {
    moe.experts().for_each_fp8(add);
    if (moe.shared() != nullptr) moe.shared()->for_each_fp8(add);
  });
  model.for_each_dense_ffn([&](int64_t, DenseFfn& ffn) { ffn.for_each_fp8(add); });
  model.for_each_attention([&](int64_t, AttentionModule& a) { a.for_each_fp8(add); });
  return out;
}

KeepsFp8Weights::KeepsFp8Weights(const std::optional<Fp8Config>& config, Model& model,
                                 size_t microbatches,
                                 const std::function<bool(const Param&)>& whole) {
  if (!config || config->weights != Fp8WeightCopies::kKept || microbatches < 2) return;
  model_ = &model;
  model.for_each_moe([&](int64_t, MoeLayer& moe) {
    Experts& experts = moe.experts();
    experts.keep_rounded_weights(whole(experts.w1) && whole(experts.w2));
    SharedExpert* const shared = moe.shared();
    if (shared != nullptr) shared->keep_rounded_weights(whole(shared->w1) && whole(shared->w2));
  });
  model.for_each_dense_ffn(
      [&](int64_t, DenseFfn& ffn) { ffn.keep_rounded_weights(whole(ffn.w1) && whole(ffn.w2)); });
  model.for_each_attention([&](int64_t, AttentionModule& attention) {
    bool all = true;
    attention.for_each("", [&](const std::string&, const Param& p) { all = all && whole(p); });
    attention.keep_rounded_weights(all);
  });
}

void KeepsFp8Weights::forget() {
  if (model_ == nullptr) return;
  model_->for_each_moe([](int64_t, MoeLayer& moe) {
    moe.experts().keep_rounded_weights(false);
    if (moe.shared() != nullptr) moe.shared()->keep_rounded_weights(false);
  });
  model_->for_each_dense_ffn([](int64_t, DenseFfn& ffn) { ffn.keep_rounded_weights(false); });
  model_->for_each_attention(
      [](int64_t, AttentionModule& attention) { attention.keep_rounded_weights(false); });
  model_ = nullptr;
}

namespace {

// Products that the line names together, and why they are emulated; empty: tensor cores multiply
// the bytes.
struct LineGroup {
  std::string what, emulated;
};

std::string of_layers(const std::vector<bool>& layers, const ModelConfig& model) {
  return " of " + std::to_string(std::ranges::count(layers, true)) + " of " +
         std::to_string(model.layers) + " layers";
}

LineGroup experts_group(const Fp8Config& config, const ModelConfig& model,
                        const GpuProducts& products) {
  const std::vector<bool> layers = fp8_layers(config, model);
  return {"experts of " + std::to_string(std::ranges::count(layers, true)) + " of " +
              std::to_string(num_moe_layers(model)) + " MoE layers",
          first_fault(model, layers, [&](const LayerConfig& l) {
            return fp8_sm90_fault(sm90_form(model, *l.moe, products));
          })};
}

// " (kv_down (576 x 2048) stays in bf16: ...)"; empty where no projection stays.
std::string staying_text(const ModelConfig& model, const std::vector<bool>& layers,
                         const GpuProducts& products) {
  std::vector<std::string> names;
  for (int64_t i = 0; model.mla && i < model.layers; ++i) {
    if (!layers[static_cast<size_t>(i)]) continue;
    for (const MlaProduct& p : mla_products(model, layer_config(model, i))) {
      const std::string name = sides_of(p);
      const bool named = std::ranges::find(names, name) != names.end();
      if (!p.fits_fp8() && !named) names.push_back(name);
    }
  }
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? " (" : ", ") + name;
  if (out.empty()) return {};
  return out + (names.size() == 1 ? " stays in " : " stay in ") +
         (products.type == at::kBFloat16 ? "bf16" : "the run's precision") +
         ": a side is no multiple of " + std::to_string(kFp8Tile) + ")";
}

LineGroup attention_group(const Fp8Config& config, const ModelConfig& model,
                          const GpuProducts& products) {
  const Sm90Form form{.width = model.width,
                      .hidden = kFp8Tile,  // faults refuse what is no multiple
                      .experts = 1,
                      .plain = true,
                      .type = products.type,
                      .gpu = products.gpu};
  const std::vector<bool> layers = fp8_attention_layers(config, model);
  return {
      "projections of attention" + of_layers(layers, model) + staying_text(model, layers, products),
      fp8_sm90_fault(form)};
}

LineGroup ffn_group(const Fp8Config& config, const ModelConfig& model,
                    const GpuProducts& products) {
  const std::vector<bool> layers = fp8_ffn_layers(config, model);
  const auto fault_of = [&](const LayerConfig& l) {
    const FfnForm form = l.moe ? l.moe->ffn.form : form_of(model.act);
    const bool swiglu = form.activation == "silu" && form.gated && !form.clamp && form.offset == 0;
    return fp8_sm90_fault({.width = model.width,
                           .hidden = ffn_hidden(l),
                           .experts = 1,
                           .plain = swiglu,
                           .type = products.type,
                           .gpu = products.gpu});
  };
  return {"dense feed-forwards and shared experts" + of_layers(layers, model),
          first_fault(model, layers, fault_of)};
}

// In the order of the line; those with a layer in 8 bits.
std::vector<LineGroup> groups_of(const Fp8Config& config, const ModelConfig& model,
                                 const GpuProducts& products) {
  std::vector<LineGroup> out;
  if (any_of(fp8_layers(config, model))) out.push_back(experts_group(config, model, products));
  if (any_of(fp8_attention_layers(config, model))) {
    out.push_back(attention_group(config, model, products));
  }
  if (any_of(fp8_ffn_layers(config, model))) out.push_back(ffn_group(config, model, products));
  if (config.emulate) {
    for (LineGroup& group : out) group.emulated = "train.fp8.emulate is set";
  }
  return out;
}

std::string recipe_text(const Fp8Config& config) {
  switch (config.recipe) {
    case Fp8Recipe::kTensor:
      return "; one scale a tensor, so that a token's bits depend on the others of its rank and "
             "microbatch";
    case Fp8Recipe::kDelayed:
      return "; one scale a tensor, made of the largest value of the last " +
             std::to_string(config.history) + (config.history == 1 ? " step" : " steps") +
             ", above which values are cut off: a token's bits depend on others and on those "
             "steps; "
             "weights' scales are of their own values";
    case Fp8Recipe::kBlock: return "; one scale for 1 x 128 of tokens, 128 x 128 of weights";
    case Fp8Recipe::kRow: break;
  }
  return {};
}

constexpr const char* kEmulatedText =
    ". Emulated: 8-bit operands in products of the run's precision, at no gain in speed";

}  // namespace

std::string fp8_line(const Fp8Config& config, const ModelConfig& model,
                     const GpuProducts& products) {
  const std::vector<LineGroup> groups = groups_of(config, model, products);
  const bool same = std::ranges::all_of(
      groups, [&](const LineGroup& g) { return g.emulated == groups.front().emulated; });
  std::string what;
  for (const LineGroup& g : groups) {
    what += (what.empty() ? "" : "; ") + g.what;
    if (same) continue;
    what += g.emulated.empty() ? " (tensor cores)" : " (emulated: " + g.emulated + ")";
  }
  const bool weight_grad = config.weight_grad == Fp8WeightGrad::kFp8;
  what += std::string(": forward, input gradients") +
          (weight_grad ? " and weight gradients" : "; weight gradients of unrounded operands") +
          recipe_text(config);
  if (!same) return "fp8: " + what + kEmulatedText;
  const std::string why = groups.empty() ? std::string() : groups.front().emulated;
  return "fp8: " + what +
         (why.empty() ? ". In 8 bits on the tensor cores" : kEmulatedText + (", because " + why));
}

}  // namespace troupe
