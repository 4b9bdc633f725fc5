// A dense model of a hub as a mixture of experts (rules U1 to U3, nn/moe/upcycle.h): what
// `troupe import --upcycle` writes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "troupe/checkpoint/hf/hf_weights.h"

namespace troupe {

// The model with `moe` in place of the dense feed-forwards of the layers that moe.layers names.
// Where moe.hidden is 0, experts are whole copies. Activation, gates and biases are the dense ones;
// a softmax over several chosen experts makes weights that sum to 1. Throws E2005 where there is no
// dense layer, the router is not topk_softmax, or the sizes do not fit.
ModelConfig upcycled_model(const ModelConfig& dense, const MoeConfig& moe);

struct UpcycledTensor {
  std::string name;  // ours; of an expert's part its own
  std::vector<int64_t> shape;
  std::function<at::Tensor()> make;
};
// The tensors of all feed-forwards of `model`, from the dense ones' weights, which must outlive
// them. Routers' rows are drawn by their names.
std::vector<UpcycledTensor> upcycled_tensors(const HfWeights& dense, const ModelConfig& model);

// "layers.3.ffn.w1", where layer 3 of `model` has experts: the dense tensor went into them.
bool is_upcycled(const ModelConfig& model, const std::string& name);

}  // namespace troupe
