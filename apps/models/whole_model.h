// A whole model in f32 on the CPU, of a hub's folder or of a checkpoint of ours: to compute with, not
// to train. Needs 4 bytes a parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace troupe {

class HfWeights;     // checkpoint/hf/hf_weights.h
class Model;         // nn/model/model.h
struct ModelConfig;  // nn/config/config.h

// Every weight is NaN until it is read; what the files do not hold is state as a new run has it.
std::unique_ptr<Model> model_of_folder(const HfWeights& weights);
std::unique_ptr<Model> model_of_checkpoint(const std::string& checkpoint,
                                           const ModelConfig& config);

// Two rows of up to 32 tokens below `vocab`, always the same ones.
at::Tensor sample_ids(int64_t vocab, int64_t max_positions);

}  // namespace troupe
