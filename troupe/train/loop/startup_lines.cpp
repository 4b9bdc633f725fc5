#include "troupe/train/loop/startup_lines.h"

#include <utility>

#include "troupe/core/text/readable.h"
#include "troupe/core/text/text.h"
#include "troupe/ops/attention/attention_cudnn.h"
#include "troupe/train/step/learner.h"
#include "troupe/train/step/step_graph.h"

namespace troupe {
namespace {

std::string losses_of(const BalanceConfig& config) {
  std::string out;
  BalanceConfig::visit(config, [&](std::string_view name, const auto& value, auto&&...) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
      if (value != 0) out += (out.empty() ? "" : ", ") + std::string(name) + ' ' + to_text(value);
    }
  });
  return out;
}

}  // namespace

std::string balance_line(const ModelConfig& model) {
  if (num_moe_layers(model) == 0) return {};
  const RouterConfig& router = model.moe.router;
  std::string how;
  bool balanced = true;
  std::visit(
      [&](const auto& c) {
        if constexpr (requires { c.balance; }) {
          how = losses_of(c.balance);
          balanced = c.balance.balances();
        }
        if constexpr (requires { c.bias_rate; }) {
          how = "a bias that moves by " + to_text(c.bias_rate) + (how.empty() ? "" : ", " + how);
          balanced |= c.bias_rate != 0;
        }
      },
      router);
  if (how.empty() && balanced) how = "by the router " + std::string(router.kind());
  if (balanced) return "balance: " + how;
  return "balance: none" + (how.empty() ? "" : " (" + how + ')') +
         ": no load balancing is on; experts may collapse. Try "
         "model.moe.router.balance.aux_loss=0.01";
}

bool forces_routing(const ModelConfig& model) {
  if (num_moe_layers(model) == 0) return false;
  return std::visit([](const auto& c) { return c.gate.force != Force::kNone; }, model.moe.router);
}

std::string forced_line(const ModelConfig& model) {
  if (!forces_routing(model)) return {};
  const Force force = std::visit([](const auto& c) { return c.gate.force; }, model.moe.router);
  return "model.moe.router.force is " + to_text(force) +
         ", an aid for benchmarks: the router learns nothing of use, and the speed is no training "
         "speed. Every step line says FORCED";
}

AttentionSegment longest_segment(int64_t sequence, const ParallelConfig& parallel) {
  if (parallel.context <= 1 || parallel.context_method == ContextMethod::kHeads) {
    return {0, sequence, 0, 0};
  }
  // A rank's chunks by documents may be neighbors, all of them.
  const bool zigzag = parallel.context_dealing == Dealing::kZigzag;
  const int64_t own = sequence / parallel.context, rows = zigzag ? own / 2 : own;
  return {0, rows, 0, parallel.context_method == ContextMethod::kRing ? 0 : sequence - rows};
}

std::string attention_line(const ModelConfig& model, Precision precision, int64_t sequence,
                           const ParallelConfig& parallel, const c10::Device& device) {
  if (!device.is_cuda()) return {};
  if (model.attn_dropout > 0) return "attention: products and a softmax, for model.attn_dropout";
  const AttentionSegment longest = longest_segment(sequence, parallel);
  const bool ring = parallel.context > 1 && parallel.context_method == ContextMethod::kRing;
  std::string out;
  for (int64_t i = 0; i < model.layers; ++i) {
    const LayerConfig layer = layer_config(model, i);
    if (!layer.attention) continue;
    AttentionHeads heads{type_of(precision), layer.head_dim, layer.head_dim, longest.rows,
                         longest.keys};
    if (model.mla) heads.value_dim = model.mla->value_dim;
    const std::string why = why_not_cudnn(heads, device);
    if (!why.empty()) return "attention: PyTorch's: " + why;
    if (ring && layer.window > 0) {
      return "attention: cuDNN's, and where a window cuts through another rank's keys products in "
             "f32, the same bits each time";
    }
    out = "attention: cuDNN's, the same bits each time";
  }
  return out;
}

std::string graph_line(const TrainConfig& train, const std::string& why_not) {
  if (!train.cuda_graph) return {};
  if (!why_not.empty()) return "cuda graph: none, every step is eager: " + why_not;
  const bool update = update_in_graph(train.optimizer);
  return std::string("cuda graph: ") + captured_parts(update) + " of a step are captured after " +
         std::to_string(StepGraph::kWarmSteps) + " eager steps, then replayed" +
         (update ? "" : "; the update of " + std::string(train.optimizer.kind()) + " stays eager");
}

std::string offload_line(const TrainConfig& train, const c10::Device& device) {
  if (train.offload_layers == 0) return {};
  const std::string layers = train.offload_layers == 1
                                 ? "the first layer"
                                 : "the first " + std::to_string(train.offload_layers) + " layers";
  if (device.is_cpu()) {
    return "activation offload: " + layers +
           "; on a cpu it copies from host memory to host memory and saves nothing";
  }
  return "activation offload: what " + layers + (train.offload_layers == 1 ? " keeps" : " keep") +
         " for backward waits in pinned host memory, copied beside computation";
}

std::string offloaded_line(int64_t bytes) {
  constexpr double kMiB = 1 << 20;
  if (bytes == 0) {
    return "activation offload: no tensor was large enough (1 MiB); train.offload_layers has no "
           "effect";
  }
  return "activation offload: " + fixed(static_cast<double>(bytes) / kMiB, 1) +
         " MiB went to host memory and back in the step";
}

std::string state_offload_line(const TrainConfig& train, const c10::Device& device) {
  if (!train.offload_state) return {};
  if (device.is_cpu()) {
    return "state offload: on a cpu it copies masters and moments within host memory and saves "
           "nothing";
  }
  return "state offload: masters and moments are in pinned host memory, and an update streams them "
         "through the GPU; weights and gradients stay there";
}

std::string update_line(const TrainConfig& train, int64_t microbatches) {
  const bool by_last = train.clip > 0 && train.clip_by == ClipBy::kLastStep;
  const std::string clip =
      by_last
          ? "gradients are clipped by the norm of the step before, those of the first not at all"
          : "gradients are not clipped";
  if (train.update != UpdatePlace::kInBackward) return by_last ? "clipping: " + clip : "";
  std::string out = "update in backward: each layer's as soon as its gradient is whole; " + clip;
  if (microbatches > 1) {
    out += "; gradients of all layers are kept until the last of " + std::to_string(microbatches) +
           " microbatches, which saves no memory: one microbatch a step does";
  }
  return out;
}

std::string frozen_line(const ModelLora& lora, Learner& learner) {
  if (!lora.on()) return {};
  int64_t packed = 0, whole = 0;
  for (const NamedParam& other : learner.store().others()) {
    int64_t& bytes = other.param->low_bit ? packed : whole;
    for (const at::Tensor& x : other.param->stored()) bytes += static_cast<int64_t>(x.nbytes());
  }
  std::string out = "frozen weights: ";
  if (lora.frozen) {
    out += readable_bytes(packed) + " in " + to_text(lora.frozen->format) + " (";
    const char* separator = "";
    for (const LoraTarget target : lora.frozen->targets) {
      out.append(std::exchange(separator, ", ")).append(to_text(target));
    }
    out += "), ";
  }
  return out + readable_bytes(whole) + " in " + to_text(learner.precision());
}

std::string causality_line(const ModelConfig& model) {
  if (num_moe_layers(model) == 0 || is_causal(model.moe.router)) return "";
  return "not causal: the router " + std::string(model.moe.router.kind()) +
         " selects among all tokens of a microbatch, later ones included, so losses and generated "
         "text are not those of an autoregressive model";
}

std::string masked_line(int64_t step) {
  return "step " + std::to_string(step) +
         ": all targets are masked, so nothing is learned. data build --learn selects the roles of "
         "a "
         "chat that count; troupe data inspect --show N prints them";
}

}  // namespace troupe
