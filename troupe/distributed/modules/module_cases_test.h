// A model of LibTorch's own modules that tests of replicas and of shards share: in double, with the
// same values wherever it is built. A block is used twice in one forward, and a layer never.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troupe/distributed/modules/fully_shard.h"

namespace troupe::module_cases {

constexpr int64_t kWidth = 7, kRows = 8, kSteps = 5;

// In double; `scale` tells values of ranks apart.
inline void set_values(torch::nn::Module& module, double scale = 0.3) {
  module.to(at::kDouble);
  const at::NoGradGuard no_grad;
  double k = 1;
  for (const at::Tensor& p : module.parameters()) {
    p.copy_((at::arange(p.numel(), at::kDouble) * 0.7 + k++).sin().view(p.sizes()) * scale);
  }
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(double scale = 0.3)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        in(register_module("up", torch::nn::Linear(kWidth, 3 * kWidth))),
        out(register_module("out", torch::nn::Linear(3 * kWidth, kWidth))) {
    set_values(*this, scale);
  }
  at::Tensor forward(const at::Tensor& x) { return x + out(in(norm(x)).tanh()); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear in, out;
};
TORCH_MODULE(Block);

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(std::shared_ptr<ProcessGroup> group, double scale = 0.3,
                     const ShardOptions& options = {}) {
    first = register_module("first", torch::nn::Linear(3, kWidth));
    unused = register_module("unused", torch::nn::Linear(kWidth, 2));
    head = register_module("head", torch::nn::Linear(kWidth, 1));
    for (torch::nn::Linear& layer : std::vector{first, unused, head}) set_values(*layer, scale);
    twice = fully_shard(register_module("twice", Block(scale)), group, options);
    once = fully_shard(register_module("once", Block(scale)), group, options);
    seen = register_buffer("seen", at::full({1}, scale, at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return head(once(twice(twice(first(x).tanh())))); }

  torch::nn::Linear first{nullptr}, unused{nullptr}, head{nullptr};
  Sharded<BlockImpl> twice, once;
  at::Tensor seen;
};

inline std::shared_ptr<ProcessGroup> alone() {
  return std::make_shared<ProcessGroup>();
}

// Rows [from, from + n) of the batch of a step.
inline at::Tensor inputs(int64_t step, int64_t from = 0, int64_t n = kRows) {
  const at::Tensor all = at::arange(kRows * 3, at::kDouble) * 0.37 + static_cast<double>(step);
  return all.cos().view({kRows, 3}).narrow(0, from, n);
}
inline at::Tensor loss_of(const at::Tensor& y, const at::Tensor& x) {
  return (y - x.sum(1, /*keepdim=*/true)).square().mean();
}

// eps bounds how far the rounding of a gradient near 0 moves its parameter.
inline torch::optim::AdamWOptions adamw() {
  return torch::optim::AdamWOptions(0.05).weight_decay(0.1).eps(1e-3);
}

inline std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& x : all) out.push_back(x.defined() ? x.detach().clone() : at::Tensor());
  return out;
}
inline std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& p : parameters) out.push_back(p.grad());
  return copies_of(out);
}

inline void expect_near(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  ASSERT_EQ(got.defined(), want.defined()) << what;
  if (!got.defined()) return;
  EXPECT_TRUE(at::allclose(got, want, 1e-12, 1e-12)) << what << '\n' << got << '\n' << want;
}

struct Steps {
  std::vector<double> losses;                      // of the rows that were given
  std::vector<std::vector<at::Tensor>> gradients;  // of each step
  std::vector<at::Tensor> parameters;              // after the last
};

// kSteps of AdamW on these rows of each batch.
template <class Forward>
Steps train(const Forward& forward, const std::vector<at::Tensor>& parameters, int64_t from,
            int64_t n) {
  torch::optim::AdamW optimizer(parameters, adamw());
  Steps out;
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor x = inputs(step, from, n), loss = loss_of(forward(x), x);
    loss.backward();
    out.losses.push_back(loss.template item<double>());
    out.gradients.push_back(gradients_of(parameters));
    optimizer.step();
  }
  out.parameters = copies_of(parameters);
  return out;
}

// One process and the whole batch.
inline Steps whole_batch() {
  ModelImpl model(alone());
  return train([&](const at::Tensor& x) { return model.forward(x); }, model.parameters(), 0, kRows);
}

}  // namespace troupe::module_cases
