#include "apps/models/run_adapters.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>

#include <string_view>

#include "troupe/checkpoint/files/reader.h"

namespace troupe {
namespace {

// "layers.0.attention.q.weight" has q.lora_a and q.lora_b, "layers.0.ffn.w1" w1_lora_a.
std::string stem_of(const std::string& weight) {
  constexpr std::string_view kWeight = ".weight";
  if (!weight.ends_with(kWeight)) return weight + "_lora_";
  return weight.substr(0, weight.size() - kWeight.size()) + ".lora_";
}

}  // namespace

RunAdapters::RunAdapters(const std::string& checkpoint, const ModelConfig& model)
    : stored_(tensors_of_checkpoint(checkpoint)),
      config_(model.lora.on() ? model.lora.factors : model.moe.ffn.lora) {
  constexpr std::string_view kModel = "model.";
  const CheckpointReader reader(checkpoint);
  for (const auto& [name, tensor] : reader.tensors()) {
    if (name.starts_with(kModel) && is_adapter(name)) names_.insert(name.substr(kModel.size()));
  }
}

std::optional<WeightFactors> RunAdapters::of(const std::string& weight) const {
  const std::string stem = stem_of(weight);
  if (!names_.contains(stem + 'a')) return std::nullopt;
  const at::Tensor a = stored_(stem + 'a').to(at::kFloat), b = stored_(stem + 'b').to(at::kFloat);
  WeightFactors out{.a = a, .b = b.reshape({-1, a.size(0)}), .m = {}};
  if (!names_.contains(stem + 'm')) return out;
  const at::Tensor own = row_norms(stored_(weight).to(at::kFloat).view({out.b.size(0), -1}));
  out.m = own + stored_(stem + 'm').to(at::kFloat).reshape({-1});
  return out;
}

at::Tensor RunAdapters::merged(const std::string& weight) const {
  at::Tensor w = stored_(weight);
  const auto factors = of(weight);
  if (!factors) return w;
  const at::Tensor delta = at::mm(factors->b, factors->a) * config_.scale();
  const at::Tensor sum = w.to(at::kFloat).view(delta.sizes()) + delta;
  const at::Tensor out =
      factors->m.defined() ? sum * (factors->m / row_norms(sum)).unsqueeze(1) : sum;
  return out.view(w.sizes());
}

ModelConfig without_adapters(ModelConfig model) {
  model.lora = {};
  model.moe.ffn.lora = {};
  return model;
}

}  // namespace troupe
