// A MoE layer over several processes against the same layer in one that has all their tokens.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "troupe/distributed/dispatch/all_to_all_dispatcher.h"
#include "troupe/nn/moe/loss_edge.h"
#include "troupe/nn/moe/moe_layer.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_ranks;
using Mode = DispatchMode;

constexpr int64_t kD = 8;
using Sizes = std::vector<int64_t>;
using Named = std::map<std::string, at::Tensor>;

struct Case {
  MoeConfig config;
  Sizes tokens;  // of each rank
  at::ScalarType type = at::kDouble;
  ExpertPlacement placement = contiguous(1, 1);

  int64_t first(int64_t rank) const {
    return std::accumulate(tokens.begin(), tokens.begin() + rank, int64_t{0});
  }
  int64_t all() const { return first(static_cast<int64_t>(tokens.size())); }
};

MoeConfig config_of(int64_t experts = 8, int64_t top_k = 3) {
  MoeConfig c;
  c.experts = experts;
  c.top_k = top_k;
  c.ffn.hidden = 6;
  c.ffn.init.std = 0.4;
  TopkSoftmaxRouting router;
  router.balance = {.aux_loss = 0.1, .global_loss = 0.2, .z_loss = 0.05};
  c.router = router;
  return c;
}

MoeLayer layer_of(const Case& c, int64_t ranks, std::unique_ptr<Dispatcher> dispatcher) {
  MoeShape shape = MoeShape::alone(kD);
  shape.layers = 2, shape.group_ranks = ranks;
  MoeLayer layer(c.config, shape, std::move(dispatcher));
  for_each_param(layer, "moe", [&](const std::string& name, Param& p) {
    if (name == "moe.router.weight") p.init.std = 0.7;
    p.allocate(at::TensorOptions(p.fp32 ? at::kFloat : c.type));
    initialize(p, name, 11);
  });
  return layer;
}

// y, the gradients of x and of all parameters, and the sum of all losses.
Named step(MoeLayer& layer, const at::Tensor& x_TD, const at::Tensor& grad_TD,
           const Context& context) {
  const at::Tensor x = x_TD.detach().clone().requires_grad_();
  MoeOutput y = layer.forward(x, {}, context);
  Named out{{"y", y.y.detach()}};
  double losses = 0;
  for (const MoeLoss& loss : y.losses) {
    losses += loss.value.item<double>();
    y.y = with_loss(y.y, loss.value, 1);
  }
  y.y.backward(grad_TD);
  for_each_param(layer, "", [&](const std::string& name, Param& p) {
    if (p.trainable()) out[name] = p.value.grad();
  });
  out["x"] = x.grad();
  out["losses"] = at::tensor({losses}, at::kDouble);
  layer.end_of_step(context.all_sum);
  for_each_param(layer, "", [&](const std::string& name, Param& p) {
    if (p.group == Group::kState) out["state: " + name] = p.value.clone();
  });
  return out;
}

// What this rank should have of what one process has of all.
at::Tensor part_of(const at::Tensor& all, const std::string& name, const Case& c, int64_t rank) {
  if (name == "y" || name == "x") return all.narrow(0, c.first(rank), c.tokens[rank]);
  if (!name.starts_with("experts.")) return all;
  return all.index_select(0, at::tensor(c.placement.held_by(rank), at::kLong));
}

// Whether each rank has a part of it, and all ranks together the whole.
bool is_share(const std::string& name) {
  return name != "y" && name != "x" && !name.starts_with("experts.") &&
         !name.starts_with("state: ");
}

// `bits`: what does not come from a sum over ranks is the same to the last bit, but for the
// router's part of x's gradient, a product of the BLAS, which may give a row other bits in other
// company.
void compare(World& world, const Case& c, Mode mode, double bound, bool bits = false) {
  at::manual_seed(3);
  const auto W = static_cast<int64_t>(c.tokens.size());
  const at::Tensor x = at::randn({c.all(), kD}, at::kDouble).to(c.type);
  const at::Tensor grad = at::randn({c.all(), kD}, at::kDouble).to(c.type);
  MoeLayer one = layer_of(c, 1, nullptr);
  MoeLayer own = layer_of(c, W, all_to_all_dispatcher(world.all(), c.placement, mode));
  const auto ranks = world.all();
  Context alone{.training = true, .seed = 5, .layer = 1}, together = alone;
  together.first_token = c.first(world.rank());
  together.group_sum =
      together.all_sum = [&](const at::Tensor& t) { return ranks->all_reduced(t); };
  for (int64_t s = 0; s < 2; ++s) {
    alone.step = together.step = s;
    const Named want = step(one, x, grad, alone);
    Named got =
        step(own, part_of(x, "x", c, world.rank()), part_of(grad, "x", c, world.rank()), together);
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, all] : want) {
      ASSERT_TRUE(got.count(name)) << name;
      if (is_share(name)) got[name] = ranks->all_reduced(got[name]);
      const at::Tensor w = part_of(all, name, c, world.rank());
      const double off =
          w.numel() == 0 ? 0 : (got[name] - w).abs().to(at::kDouble).max().item<double>();
      EXPECT_TRUE(off <= (bits && !is_share(name) && name != "x" ? 0 : bound))
          << name << " is off by " << off << " in " << to_text(mode);
    }
  }
}

void compare_f64(World& world, const MoeConfig& config, const Sizes& tokens) {
  Case c{.config = config, .tokens = tokens};
  c.placement = contiguous(config.experts, static_cast<int64_t>(tokens.size()));
  for (const Mode mode : {Mode::kFast, Mode::kExact}) compare(world, c, mode, 1e-11);
}

// The same choices in f32 and bf16 are the same rows, whose products one process makes as well.
void compare_bits(World& world, const MoeConfig& config, const Sizes& tokens) {
  Case c{.config = config, .tokens = tokens};
  c.placement = contiguous(config.experts, static_cast<int64_t>(tokens.size()));
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    c.type = type;
    compare(world, c, Mode::kExact, type == at::kFloat ? 1e-4 : 0.5, true);
  }
}

// Every form of the layer.
std::vector<MoeConfig> forms() {
  std::vector<MoeConfig> out{config_of()};
  const auto add = [&](auto&& change) {
    out.push_back(config_of());
    change(out.back());
  };
  add([](MoeConfig& c) { c.ffn.recompute = Recompute::kLayer; });
  add([](MoeConfig& c) {
    c.ffn.recompute = Recompute::kExpert;
    c.ffn.bias = c.output_bias = true;
    c.latent = 4;
  });
  add([](MoeConfig& c) {
    c.shared = {.experts = 1, .overlap = true};
    c.ffn.impl = ExpertsImpl::kLoop;
  });
  add([](MoeConfig& c) {
    c.ffn.impl = ExpertsImpl::kBlockSparse;
    c.ffn.hidden = kExpertBlock;
  });
  add([](MoeConfig& c) {
    SigmoidBiasRouting router;
    router.bias_rate = 0.1;
    c.router = router;
    c.shared = {.experts = 1, .overlap = false};
  });
  add([](MoeConfig& c) {
    c.top_k = 1;
    c.ffn.score_on_input = true;
  });
  return out;
}

TEST(MoeLayerRanks, X_TwoRanksEqualOneInOutputsLossesAndAllGradients) {
  in_ranks(2, [](World& world) {
    for (const MoeConfig& config : forms()) compare_f64(world, config, {13, 20});
    compare_f64(world, config_of(), {0, 9});
  });
}

TEST(MoeLayerRanks, X_FourRanksEqualOneInOutputsLossesAndAllGradients) {
  in_ranks(4, [](World& world) {
    for (const MoeConfig& config : forms()) compare_f64(world, config, {6, 0, 11, 3});
  });
}

TEST(MoeLayerRanks, H5_ExactIsOneProcessBitForBit) {
  in_ranks(2, [](World& world) {
    MoeConfig config = config_of();
    compare_bits(world, config, {13, 20});
    config.ffn.recompute = Recompute::kLayer;
    config.shared.experts = 1;
    compare_bits(world, config, {1, 20});
  });
}

}  // namespace
}  // namespace troupe
