// A dropless MoE layer on the CPU: forward, balance loss, backward, and who got how many tokens.
#include <ATen/ops/randn.h>

#include <cstdio>
#include <exception>

#include "troupe/troupe.h"

namespace {

constexpr const char* kRecipe = R"(
experts: 8
top_k: 2
hidden: 64
router: {kind: topk_softmax, balance: {aux_loss: 0.01, z_loss: 0.001}}
)";

void run() {
  const int64_t B = 2, S = 16, D = 32;
  troupe::MoeConfig config;
  troupe::read_config(troupe::parse_yaml(kRecipe, "recipe"), config);
  troupe::MoeLayer layer(config, troupe::MoeShape::alone(D));
  troupe::for_each_param(layer, "moe", [](const std::string& name, troupe::Param& p) {
    troupe::initialize(p, name, /*seed=*/1);
  });

  const at::Tensor x_BSD = at::randn({B, S, D}).requires_grad_();
  const troupe::MoeOutput out = layer.forward(x_BSD, {.sequences = B}, {.training = true});
  at::Tensor y_BSD = out.y;
  for (const troupe::MoeLoss& loss : out.losses) {
    std::printf("%s %.4f\n", loss.name.c_str(), loss.value.item<double>());
    y_BSD = troupe::with_loss(y_BSD, loss.value, /*weight=*/1);
  }
  y_BSD.square().mean().backward();
  troupe::for_each_param(layer, "moe", [](const std::string& name, troupe::Param& p) {
    if (!p.trainable()) return;
    std::printf("%-20s gradient norm %.2e\n", name.c_str(), p.value.grad().norm().item<double>());
  });
  const at::Tensor counts_E = out.stats.counts_E.cpu();
  for (int64_t e = 0; e < counts_E.numel(); ++e) {
    std::printf("expert %ld got %ld rows\n", e, counts_E[e].item<int64_t>());
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
