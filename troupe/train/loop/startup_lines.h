// The lines that a run logs before its first step.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "troupe/nn/config/config.h"
#include "troupe/ops/attention/attention_segment.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

class Learner;  // train/step/learner.h

// The load balancing in use: "balance: aux_loss 0.01, z_loss 0.001". Without any, it warns and
// names the key. Empty for a dense model.
std::string balance_line(const ModelConfig& model);

// Routing forced by a benchmark aid (R3, model.moe.router.force). The line says that its speed is
// no training speed; empty if nothing is forced.
bool forces_routing(const ModelConfig& model);
std::string forced_line(const ModelConfig& model);

// The most that a rank's attention takes of a row of `sequence` tokens in one call's sequence:
// queries and the past that they see.
AttentionSegment longest_segment(int64_t sequence, const ParallelConfig& parallel);

// The attention implementation on a GPU, and why not cuDNN's if it is another. Empty on a CPU, and
// for a model without attention.
std::string attention_line(const ModelConfig& model, Precision precision, int64_t sequence,
                           const ParallelConfig& parallel, const c10::Device& device);

// train.cuda_graph: whether steps are replayed. `why_not`: why_no_graph's (step_graph.h). Empty
// where it is not asked for.
std::string graph_line(const TrainConfig& train, const std::string& why_not);

// train.offload_layers: where the activations of these layers wait. Empty without it.
std::string offload_line(const TrainConfig& train, const c10::Device& device);

// How much of them left the device in a step.
std::string offloaded_line(int64_t bytes);

// train.offload_state: where masters and moments are. Empty without it.
std::string state_offload_line(const TrainConfig& train, const c10::Device& device);

// train.update in_backward: what it keeps and by which norm it clips. Empty without it, and without
// train.clip_by last_step. `microbatches`: of a step, on this rank.
std::string update_line(const TrainConfig& train, int64_t microbatches);

// "frozen weights: 168.0 MiB in nf4 (experts, attention), 35.2 MiB in bf16": of this rank, with
// model.lora. Empty without it.
std::string frozen_line(const ModelLora& lora, Learner& learner);

// The warning for a router that considers later tokens (expert_choice): losses and generated text
// are not those of a causal model. Else empty.
std::string causality_line(const ModelConfig& model);

// The warning for a batch whose targets are all masked: its loss is 0 and no weight changes.
std::string masked_line(int64_t step);

}  // namespace troupe
