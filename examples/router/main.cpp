// A MoE layer with that router learns a function that differs by the sign of one coordinate.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>

#include <cstdio>
#include <exception>
#include <vector>

#include "cosine_router.h"

namespace {

constexpr int64_t kTokens = 256, kWidth = 16, kExperts = 4, kTopK = 2;

void run() {
  troupe::MoeConfig config;
  config.experts = kExperts;
  config.top_k = kTopK;
  config.ffn.hidden = 32;
  config.ffn.init.std = 0.2;
  troupe::MoeLayer layer(config, troupe::MoeShape::alone(kWidth), /*dispatcher=*/nullptr,
                         cosine_router({kWidth, kExperts, kTopK}, /*aux_loss=*/0.01));
  std::vector<troupe::Param*> params;
  troupe::for_each_param(layer, "moe", [&](const std::string& name, troupe::Param& p) {
    troupe::initialize(p, name, /*seed=*/1);
    if (p.trainable()) params.push_back(&p);
  });
  const at::Tensor x_TD = at::randn({kTokens, kWidth});
  const at::Tensor want_TD = at::where(x_TD.narrow(1, 0, 1) > 0, x_TD, -x_TD);
  for (int step = 0; step <= 300; ++step) {
    const troupe::MoeOutput out = layer.forward(x_TD, {}, {.training = true});
    at::Tensor loss = (out.y - want_TD).square().mean();
    if (step % 100 == 0) std::printf("step %d  loss %.4f\n", step, loss.item<double>());
    for (const troupe::MoeLoss& aux : out.losses) loss = loss + aux.value;
    loss.backward();
    const at::NoGradGuard no_grad;
    for (troupe::Param* p : params) {
      p->value.sub_(p->value.grad(), /*alpha=*/1);
      p->value.mutable_grad().reset();
    }
    layer.end_of_step();
  }
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
