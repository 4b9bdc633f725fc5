// A whole model on one device, of a hub's folder or of a checkpoint of ours: to compute with, not to
// train. `options`: type and device of its weights, f32 on the CPU by default; what a model keeps in
// f32 stays so.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace troupe {

class HfWeights;     // checkpoint/hf/hf_weights.h
class Model;         // nn/model/model.h
struct ModelConfig;  // nn/config/config.h

// Every weight is NaN until it is read; what the files do not hold is state as a new run has it.
std::unique_ptr<Model> model_of_folder(const HfWeights& weights,
                                       const at::TensorOptions& options = at::kFloat);
std::unique_ptr<Model> model_of_checkpoint(const std::string& checkpoint, const ModelConfig& config,
                                           const at::TensorOptions& options = at::kFloat);

}  // namespace troupe
