// A small transformer of plain LibTorch learns to count, its parameters sharded over the ranks:
//   sharded [MODEL.pt]      writes the whole model, for torch::load in one process
// One process alone, or ranks that a launcher starts: torchrun, srun, mpirun, or RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT. Any number of ranks that divides the 8 rows has the same losses.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/serialize.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "troupe/distributed/modules/fully_shard.h"
#include "troupe/distributed/world/world.h"

namespace {

namespace nn = torch::nn;

constexpr int64_t kVocab = 32, kRows = 8, kTokens = 16, kWidth = 32, kHeads = 4, kLayers = 2;

struct BlockImpl : nn::Module {
  BlockImpl()
      : norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        qkv(register_module("qkv", nn::Linear(kWidth, 3 * kWidth))),
        proj(register_module("proj", nn::Linear(kWidth, kWidth))),
        up(register_module("up", nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", nn::Linear(4 * kWidth, kWidth))) {}

  at::Tensor attention(const at::Tensor& x) {
    const int64_t B = x.size(0), S = x.size(1), head = kWidth / kHeads;
    const auto parts = qkv(x).view({B, S, 3, kHeads, head}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor later = at::ones({S, S}, at::kBool).triu(1);
    const at::Tensor scores = parts[0].matmul(parts[1].transpose(-1, -2)) / std::sqrt(head);
    const at::Tensor p = scores.masked_fill(later, -INFINITY).softmax(-1);
    return proj(p.matmul(parts[2]).transpose(1, 2).reshape({B, S, kWidth}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = x + attention(norm1(x));
    return h + down(up(norm2(h)).relu());
  }

  nn::LayerNorm norm1, norm2;
  nn::Linear qkv, proj, up, down;
};
TORCH_MODULE(Block);

// Each block is a unit: its parameters are whole while it computes. The others are a unit around
// them.
struct ModelImpl : nn::Module {
  explicit ModelImpl(const std::shared_ptr<troupe::ProcessGroup>& group)
      : tokens(register_module("tokens", nn::Embedding(kVocab, kWidth))),
        positions(register_module("positions", nn::Embedding(kTokens, kWidth))),
        head(register_module("head", nn::Linear(kWidth, kVocab))) {
    std::vector<Block> made;
    for (int64_t i = 0; i < kLayers; ++i) {
      made.push_back(register_module("block" + std::to_string(i), Block()));
    }
    to(torch::kDouble);  // before anything is sharded
    for (const Block& block : made) blocks.push_back(troupe::fully_shard(block, group));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor h = tokens(ids) + positions(at::arange(ids.size(1), at::kLong));
    for (const auto& block : blocks) h = block(h);
    return head(h);
  }

  nn::Embedding tokens, positions;
  nn::Linear head;
  std::vector<troupe::Sharded<BlockImpl>> blocks;
};

void run(const std::string& path) {
  const auto place = troupe::launcher_environment();
  troupe::World world(place.value_or(troupe::LauncherEnvironment{}), c10::kCPU, {});
  const auto group = world.all();

  torch::manual_seed(1);
  const auto model = troupe::fully_shard(std::make_shared<ModelImpl>(group), group);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-2));

  const int64_t n = kRows / world.size();  // rows of this rank
  const at::Tensor all = (at::arange(kRows).unsqueeze(1) * 3 + at::arange(kTokens + 1)) % kVocab;
  const at::Tensor ids = all.narrow(0, world.rank() * n, n);
  for (int step = 0; step <= 60; ++step) {
    optimizer.zero_grad();
    const at::Tensor logits = model(ids.narrow(1, 0, kTokens));
    const at::Tensor loss = nn::functional::cross_entropy(logits.reshape({-1, kVocab}),
                                                          ids.narrow(1, 1, kTokens).reshape({-1}));
    loss.backward();
    const double norm = model.clip_grad_norm(1.0);
    optimizer.step();
    const double mean = group->all_reduced(loss).item<double>() / static_cast<double>(world.size());
    if (step % 20 == 0 && world.rank() == 0) {
      std::printf("step %d  loss %.9f  gradient norm %.9f\n", step, mean, norm);
    }
  }
  if (path.empty()) return;
  const auto whole = world.rank() == 0
                         ? std::make_shared<ModelImpl>(std::make_shared<troupe::ProcessGroup>())
                         : nullptr;
  model.copy_to(whole.get());
  if (whole) torch::save(whole, path);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a write to a lost rank is then an error with its name
  try {
    run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
