// What shows over many steps alone: the loss under quantised activations, and memory.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <random>

#include "troupe/nn/loss_edge.h"
#include "troupe/nn/moe_layer.h"

namespace troupe {
namespace {

constexpr int64_t kD = 16;

MoeLayer layer_of(const MoeConfig& config, uint64_t seed) {
  MoeLayer layer(config, {.width = kD});
  for_each_param(layer, "moe", [&](const std::string& name, Param& p) {
    p.allocate(at::TensorOptions(at::kFloat));
    initialise(p, name, seed);
  });
  return layer;
}

MoeConfig small(double std) {
  MoeConfig c;
  c.experts = 4;
  c.ffn.hidden = 16;
  c.ffn.init.std = std;
  return c;
}

void descend(MoeLayer& layer, double rate) {
  const at::NoGradGuard no_grad;
  for_each_param(layer, "", [&](const std::string&, Param& p) {
    if (!p.value.grad().defined()) return;
    p.value.sub_(p.value.grad(), rate);
    p.value.mutable_grad().reset();
  });
}

// One thread: steps this small cost less than waking another, and mallinfo2 speaks of the main
// thread's memory.
class MoeTraining : public ::testing::Test {
 protected:
  MoeTraining() { at::set_num_threads(1); }
  ~MoeTraining() override { at::set_num_threads(threads_); }

 private:
  int threads_ = at::get_num_threads();
};

// Fits a layer to a noisy other one for 2,000 steps; returns the loss on fresh tokens.
double loss_after_training(const QuantizeConfig& bits) {
  at::manual_seed(4);
  MoeConfig c = small(0.3);
  MoeLayer teacher = layer_of(c, 1);
  c.ffn.quantize = bits;
  MoeLayer student = layer_of(c, 2);
  const auto loss = [&](int64_t T) {
    const at::Tensor x = at::randn({T, kD});
    at::Tensor want;
    {
      const at::NoGradGuard no_grad;
      want = teacher.forward(x, {}, {}).y + 0.3 * at::randn({T, kD});
    }
    return (student.forward(x, {}, {.training = true}).y - want).square().mean();
  };
  for (int step = 0; step < 2000; ++step) {
    loss(48).backward();
    descend(student, 0.5);
  }
  const at::NoGradGuard no_grad;
  return loss(4096).item<double>();
}

TEST_F(MoeTraining, Q3_TwoThousandStepsEndWithinHalfAPercentOfTheUnquantisedLoss) {
  const double plain = loss_after_training({});
  const double quantised = loss_after_training({.inputs = 8, .rematerialize = 8, .scatter = 8});
  EXPECT_NE(quantised, plain);
  EXPECT_NEAR(quantised / plain, 1, 5e-3);
  EXPECT_LT(plain, 0.2);  // it learned: the noise alone is 0.09, at the start it was above
}

size_t bytes_in_use() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Another number of tokens in every step, training and evaluation in turn; losses, a capacity,
// recomputation and quantised activations all keep state or graphs while a step lasts.
TEST_F(MoeTraining, E18_E20_AThousandStepsOfAnyNumberOfTokensKeepNoMemory) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kLayer}) {
    MoeConfig c = small(0.1);
    auto& balance = std::get<TopkSoftmaxRouting>(c.router).balance;
    balance.z_loss = 1e-3;
    balance.global_loss = 1e-2;
    c.capacity = {.factor = 1.25, .pad = true};
    c.ffn.recompute = recompute;
    if (recompute == Recompute::kNone) c.ffn.quantize = {.inputs = 8, .rematerialize = 4};
    MoeLayer layer = layer_of(c, 3);
    std::mt19937 rng(5);
    size_t warm = 0;
    for (int step = 0; step < 1000; ++step) {
      if (step == 200) warm = bytes_in_use();
      const auto T = static_cast<int64_t>(rng() % 64);
      const bool training = step % 3 != 0;
      MoeOutput out =
          layer.forward(at::randn({T, kD}).requires_grad_(), {}, {.training = training});
      at::Tensor y = out.y;
      for (const MoeLoss& loss : out.losses) y = with_loss(y, loss.value, 1);
      if (!training) continue;
      y.square().sum().backward();
      descend(layer, 1e-4);
      layer.end_of_step();
    }
    EXPECT_LT(bytes_in_use(), warm + (size_t{256} << 10));
  }
}

}  // namespace
}  // namespace troupe
