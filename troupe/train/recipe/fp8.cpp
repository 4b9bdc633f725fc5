#include "troupe/train/recipe/fp8.h"

#include <algorithm>

#include "troupe/nn/attention_module.h"
#include "troupe/nn/models/model.h"
#include "troupe/nn/moe_layer.h"
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
  if (ffn.lora.rank > 0) return "does not take LoRA adapters: set model.moe.lora.rank: 0";
  if (ffn.recompute == Recompute::kExpert) {
    return "does not take model.moe.recompute: expert; layer recomputes more, none less";
  }
  if (ffn.quantize.inputs >= 0 || ffn.quantize.rematerialize >= 0) {
    return "does not take model.moe.quantize: leave one of the two out";
  }
  return {};
}

// A projection's own rows and columns: groups that share a scale do not reach from one to another.
std::string attention_fault(const ModelConfig& model, const LayerConfig& layer) {
  if (model.mla) return "attention: projections to latents (model.mla) have none in 8 bits";
  for (const int64_t size :
       {model.width, layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim}) {
    if (size % kFp8Tile == 0) continue;
    return "attention: q, k, v and out have a side of " + std::to_string(size) +
           "; each must be a multiple of " + std::to_string(kFp8Tile) +
           ". Use other heads, or attention: false";
  }
  return {};
}

bool skipped(const Fp8Config& config, const ModelConfig& model, int64_t layer) {
  return layer < config.skip_first || layer >= model.layers - config.skip_last;
}

Fp8Options options_of(const Fp8Config& config) {
  return {.weight_grad = config.weight_grad == Fp8WeightGrad::kFp8, .emulate = config.emulate};
}

}  // namespace

std::vector<std::string> fp8_faults(const Fp8Config& config, const ModelConfig& model) {
  const int64_t first = config.skip_first, last = config.skip_last;
  if (first < 0 || last < 0) return {"skip_first and skip_last must not be negative"};
  if (first > model.layers || last > model.layers - first) {
    return {"skip_first " + std::to_string(first) + " and skip_last " + std::to_string(last) +
            " leave none of the model's " + std::to_string(model.layers) + " layers"};
  }
  const std::vector<bool> layers = fp8_layers(config, model);
  if (std::ranges::find(layers, true) == layers.end()) {
    return {"no MoE layer would compute in 8 bits: the model has none outside the skipped ones"};
  }
  for (int64_t i = 0; i < model.layers; ++i) {
    if (!layers[static_cast<size_t>(i)]) continue;
    const std::string fault = layer_fault(*layer_config(model, i).moe, model.width);
    if (!fault.empty()) return {fault};
  }
  const std::vector<bool> projections = fp8_attention_layers(config, model);
  for (int64_t i = 0; i < model.layers; ++i) {
    if (!projections[static_cast<size_t>(i)]) continue;
    const std::string fault = attention_fault(model, layer_config(model, i));
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

void use_fp8(const Fp8Config& config, Model& model) {
  const std::vector<bool> layers = fp8_layers(config, model.config());
  Fp8Options of_experts = options_of(config);
  of_experts.beside = std::make_shared<SideStream>();  // one for all layers
  model.for_each_moe([&](int64_t unit, MoeLayer& moe) {
    const auto layer = static_cast<size_t>(unit - 1);
    if (layer >= layers.size() || !layers[layer]) return;  // MTP modules stay as they are
    moe.experts().compute_in_fp8(of_experts);
  });
  const std::vector<bool> projections = fp8_attention_layers(config, model.config());
  model.for_each_attention([&](int64_t layer, AttentionModule& attention) {
    if (projections[static_cast<size_t>(layer)]) attention.compute_in_fp8(options_of(config));
  });
}

KeepsFp8Weights::KeepsFp8Weights(const std::optional<Fp8Config>& config, Model& model,
                                 size_t microbatches,
                                 const std::function<bool(const Param&)>& whole) {
  if (!config || config->weights != Fp8WeightCopies::kKept) return;
  model_ = &model;
  const bool several = microbatches > 1;
  model.for_each_moe([&](int64_t, MoeLayer& moe) {
    Experts& experts = moe.experts();
    const bool stays = whole(experts.w1) && whole(experts.w2);
    experts.keep_rounded_weights(several && stays);
    experts.allow_rounding_ahead(stays);
  });
  if (!several) return;
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
    moe.experts().allow_rounding_ahead(false);
  });
  model_->for_each_attention(
      [](int64_t, AttentionModule& attention) { attention.keep_rounded_weights(false); });
  model_ = nullptr;
}

namespace {

// Why a layer's products are emulated; empty: tensor cores multiply the bytes.
std::string emulation_reason(const Fp8Config& config, const ModelConfig& model,
                             const GpuProducts& products) {
  if (config.emulate) return "train.fp8.emulate is set";
  const std::vector<bool> layers = fp8_layers(config, model);
  for (int64_t i = 0; i < model.layers; ++i) {
    if (!layers[static_cast<size_t>(i)]) continue;
    const MoeConfig moe = *layer_config(model, i).moe;
    const std::string why = fp8_sm90_fault(sm90_form(model, moe, products));
    if (!why.empty()) return why;
  }
  return {};
}

std::string attention_text(const Fp8Config& config, const ModelConfig& model) {
  return "; projections of attention of " +
         std::to_string(std::ranges::count(fp8_attention_layers(config, model), true)) + " of " +
         std::to_string(model.layers) + " layers";
}

}  // namespace

std::string fp8_line(const Fp8Config& config, const ModelConfig& model,
                     const GpuProducts& products) {
  const std::vector<bool> layers = fp8_layers(config, model);
  const bool weight_grad = config.weight_grad == Fp8WeightGrad::kFp8;
  const std::string why = emulation_reason(config, model, products);
  return "fp8: experts of " + std::to_string(std::ranges::count(layers, true)) + " of " +
         std::to_string(num_moe_layers(model)) + " MoE layers: up, down, their input gradients" +
         (weight_grad ? " and weight gradients" : "; weight gradients of unrounded operands") +
         (config.attention ? attention_text(config, model) : std::string()) +
         (why.empty() ? ". In 8 bits on the tensor cores"
                      : ". Emulated: 8-bit operands in products of the run's precision, at no gain "
                        "in speed, because " +
                            why);
}

}  // namespace troupe
