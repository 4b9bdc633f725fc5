// The low-rank adapters of a checkpoint (nn/parts/lora.h): their factors, and the weights with them
// merged in.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <set>
#include <string>

#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/nn/config/config.h"

namespace troupe {

struct WeightFactors {
  at::Tensor a, b;  // f32 [r, in], [out, r], out the weight's rows
  at::Tensor m;     // f32 [out], of DoRA: the magnitudes themselves; else undefined
};

class RunAdapters {
 public:
  // Those of a checkpoint of `model`, trained with model.lora or with model.moe.lora.
  RunAdapters(const std::string& checkpoint, const ModelConfig& model);

  bool none() const { return names_.empty(); }
  int64_t count() const { return std::ssize(names_); }  // factors
  const LoraConfig& config() const { return config_; }
  // Of a weight of the model ("layers.0.attention.q.weight"); absent: it has no adapter.
  std::optional<WeightFactors> of(const std::string& weight) const;
  // A weight with its adapter merged in, W + s B A, or that with rows of norm m, in f32; one without
  // an adapter as it is stored.
  at::Tensor merged(const std::string& weight) const;

 private:
  TensorOf stored_;
  LoraConfig config_;
  std::set<std::string> names_;  // of the factors
};

// The config of the model that the adapters are beside.
ModelConfig without_adapters(ModelConfig model);

}  // namespace troupe
