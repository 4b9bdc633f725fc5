// Runs one MoE layer on tensors that Python made, for tests/hf_blocks_test.py:
//   moe_block CONFIG.yaml IN.pt OUT.pt
// IN holds x [B, S, D], grad (of y) and every parameter under its name; with seed, an int64 scalar,
// those that it does not have are drawn from it. OUT gets y, loss.NAME, the parameters, and the
// gradients, x.grad and PARAMETER.grad. Both are dictionaries of torch.save.

#include <cstdio>
#include <exception>

#include "tests/pickled.h"
#include "troupe/core/config/config.h"
#include "troupe/nn/moe/loss_edge.h"
#include "troupe/nn/moe/moe_layer.h"

namespace troupe {
namespace {

void run(const char* config_path, const char* in_path, const char* out_path) {
  MoeConfig config;
  read_config(load_yaml(config_path), config);
  const Tensors in = load_pickled(in_path);
  at::Tensor x = in.at("x").clone().requires_grad_();
  MoeLayer layer(config, MoeShape::alone(x.size(-1)));
  for_each_param(layer, "", [&](const std::string& name, Param& p) {
    p.allocate(x.options());
    if (in.contains("seed") && !in.contains(name)) {
      initialize(p, name, static_cast<uint64_t>(in.at("seed").item<int64_t>()));
    }
    if (!in.contains(name)) return;
    p.value.detach().copy_(in.at(name).view(p.value.sizes()));
  });
  Tensors out;
  MoeOutput result = layer.forward(x, {.sequences = x.size(0)}, {.training = true});
  at::Tensor y = result.y;
  for (const MoeLoss& loss : result.losses) {
    out.insert("loss." + loss.name, loss.value.detach());
    y = with_loss(y, loss.value, 1.0);
  }
  y.backward(in.at("grad"));
  out.insert("y", y.detach());
  out.insert("x.grad", x.grad());
  for_each_param(layer, "", [&](const std::string& name, Param& p) {
    out.insert(name, p.value.detach());
    if (p.value.grad().defined()) out.insert(name + ".grad", p.value.grad());
  });
  save_pickled(out_path, out);
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: moe_block CONFIG.yaml IN.pt OUT.pt\n"), 2;
  try {
    troupe::run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 1;
  }
  return 0;
}
