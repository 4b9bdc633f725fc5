// Latent attention whose projections have 8-bit operands (train.fp8.attention).
#include "troupe/nn/attention/mla.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "troupe/distributed/world/world.h"
#include "troupe/ops/moe_ffn/e4m3_groups_test.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_threads;

constexpr int64_t kRows = 2, kRowTokens = 60, kHeads = 4;

// All products fit but kv_down of 128 + 64 = 192 rows.
ModelConfig latent_model(int64_t q_rank) {
  ModelConfig c;
  c.layers = 2;
  c.width = 256;
  c.heads = kHeads;
  c.mla = MlaConfig{
      .q_rank = q_rank, .kv_rank = 128, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
  return c;
}

void fill(Mla& mla) {
  mla.for_each("attention", [](const std::string& name, Param& p) {
    if (p.global.size() == 2) p.init = {.kind = Init::kNormal, .std = 0.08};
    p.allocate(at::TensorOptions(at::kFloat));
    initialize(p, name, 1);
  });
}

using Tensors = std::map<std::string, at::Tensor>;

// Output, gradient of x ("x") and of each parameter by its name.
Tensors results(Mla& mla, const at::Tensor& x_in, const at::Tensor& dy) {
  const Packing packing;
  const Context context{.training = true};
  const at::Tensor x = x_in.detach().clone().requires_grad_();
  mla.for_each("", [](const std::string&, Param& p) { p.value.mutable_grad().reset(); });
  const at::Tensor y =
      mla.forward(x, {.rows = kRows, .tokens = kRowTokens, .packing = packing, .context = context});
  y.backward(dy);
  Tensors out = {{"y", y.detach()}, {"x", x.grad()}};
  mla.for_each("", [&](const std::string& name, Param& p) { out[name] = p.value.grad().clone(); });
  return out;
}

// linear_fp8.h's formulas in f64, with their gradients.
at::Tensor rounded_product(const at::Tensor& x, const at::Tensor& w) {
  at::Tensor y, w8;
  Rounded x8;
  {
    const at::NoGradGuard no_grad;
    x8 = round_groups(x.detach());
    w8 = blocks(w.detach());
    y = at::mm(x8.value(), w8.t());
  }
  record({.name = "rounded_product",
          .inputs = {x, w},
          .outputs = {y},
          .saved = {x8.unscaled, x8.scale, w8},
          .backward = [](const Gradients& g) -> TensorList {
            const at::NoGradGuard no_grad;
            const at::Tensor dy = g.outputs[0].contiguous();
            return {at::mm(tiles(dy), g.saved[2]), at::mm(blocks(g.saved[1] * dy).t(), g.saved[0])};
          }});
  return y;
}

// The header's formulas in f64, with the operands of products that fit rounded.
class Definition {
 public:
  Definition(const ModelConfig& config, Mla& mla) : config_(config) {
    mla.for_each("", [&](const std::string& name, Param& p) {
      leaves_[name] = p.value.detach().to(at::kDouble).requires_grad_();
    });
  }

  Tensors results(const at::Tensor& x_in, const at::Tensor& dy) {
    const at::Tensor x = x_in.detach().to(at::kDouble).requires_grad_();
    const at::Tensor y = forward(x);
    y.backward(dy.to(at::kDouble));
    Tensors out = {{"y", y.detach()}, {"x", x.grad()}};
    for (const auto& [name, leaf] : leaves_) out[name] = leaf.grad();
    return out;
  }

 private:
  at::Tensor product(const at::Tensor& x, const std::string& name) const {
    const at::Tensor& w = leaves_.at(name + ".weight");
    const bool fits = w.size(0) % kTile == 0 && w.size(1) % kTile == 0;
    return fits ? rounded_product(x.contiguous(), w) : at::linear(x, w);
  }
  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor mean = (x * x).mean(-1, /*keepdim=*/true);
    return x * at::rsqrt(mean + config_.mla->eps) * leaves_.at(name + ".weight");
  }
  at::Tensor turned(const at::Tensor& x, int64_t first) {
    const RotaryTables& tables = rope_.tables(kRowTokens, x);
    return rotary(x.unflatten(0, {kRows, kRowTokens}), tables, {}, rope_.options(first))
        .flatten(0, 1);
  }

  at::Tensor forward(const at::Tensor& x) {
    const MlaConfig& m = *config_.mla;
    const at::Tensor q_flat =
        m.q_rank == 0 ? product(x, "q") : product(norm(product(x, "q_down"), "q_norm"), "q_up");
    const at::Tensor q = turned(q_flat.unflatten(1, {kHeads, -1}), m.nope_dim);
    const at::Tensor down = product(x, "kv_down");
    const at::Tensor c = norm(down.narrow(1, 0, m.kv_rank), "kv_norm");
    const at::Tensor r = turned(down.narrow(1, m.kv_rank, m.rope_dim).unsqueeze(1), 0);
    const at::Tensor up = product(c, "kv_up").unflatten(1, {kHeads, -1});
    const at::Tensor k =
        at::cat({up.narrow(2, 0, m.nope_dim), r.expand({-1, kHeads, m.rope_dim})}, 2);
    const at::Tensor v = up.narrow(2, m.nope_dim, m.value_dim);
    AttentionForm form = {.scale = 1 / std::sqrt(static_cast<double>(m.nope_dim + m.rope_dim))};
    form.lengths.assign(kRows, kRowTokens);
    return product(attention(q, k, v, form).flatten(1), "out");
  }

  ModelConfig config_;
  Tensors leaves_;
  Rope rope_{config_.rope, config_.mla->rope_dim};
};

at::Tensor tokens_of(int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return at::randn({kRows * kRowTokens, 256}, at::kFloat);
}

// Several rounded products follow each other, and a value beside a tie of e4m3 moves by a step.
constexpr double kNear = 1e-2;

TEST(Mla, Q8_18_ProjectionsInFp8EqualTheDefinitionInOutputAndGradients) {
  for (const int64_t q_rank : {0, 128}) {
    const ModelConfig config = latent_model(q_rank);
    Mla mla(config, layer_config(config, 0));
    fill(mla);
    const at::Tensor x = tokens_of(1), dy = tokens_of(2);
    const Tensors unrounded = results(mla, x, dy);
    mla.compute_in_fp8({});
    const Tensors got = results(mla, x, dy);
    for (const auto& [name, want] : Definition(config, mla).results(x, dy)) {
      EXPECT_LT(distance(got.at(name), want), kNear) << name << ' ' << q_rank;
      EXPECT_GT(distance(got.at(name), unrounded.at(name)), 2 * kNear) << name << ' ' << q_rank;
    }
    mla.keep_rounded_weights(true);
    for (int call = 0; call < 2; ++call) {
      for (const auto& [name, kept] : results(mla, x, dy)) {
        EXPECT_TRUE(at::equal(kept, got.at(name))) << name << ' ' << q_rank;
      }
    }
  }
}

// Which products are in 8 bits follows from the whole weights: output and gradient of x are those
// of one process.
TEST(Mla, Q8_18_OverTensorRanksInFp8IsOneProcess) {
  const ModelConfig config = latent_model(128);
  const at::Tensor x = tokens_of(1), dy = tokens_of(2);
  Mla whole(config, layer_config(config, 0));
  fill(whole);
  const Tensors want = Definition(config, whole).results(x, dy);
  std::mutex mutex;
  in_threads(2, [&](World& world) {
    const TensorParts parts{.sharding = TokenSharding(world.group(world.all()->ranks(), "tensor"))};
    Mla mla(config, layer_config(config, 0), parts);
    fill(mla);
    mla.compute_in_fp8({});
    const TokenRange own = parts.sharding.own(x.size(0));
    const Tensors got =
        results(mla, x.narrow(0, own.from, own.count), dy.narrow(0, own.from, own.count));
    const std::lock_guard<std::mutex> lock(mutex);
    for (const char* name : {"y", "x"}) {
      EXPECT_LT(distance(got.at(name), want.at(name).narrow(0, own.from, own.count)), kNear)
          << name;
    }
  });
}

TEST(Mla, Q8_18_RefusesACutThroughAGroup) {
  ModelConfig config = latent_model(0);
  config.mla->value_dim = 32;  // 128 columns of out, of which two ranks would have 64 each
  Mla mla(config, layer_config(config, 0), {.sharding = TokenSharding::of_sizes(2)});
  TROUPE_EXPECT_REFUSAL(mla.compute_in_fp8({}), "fewer ranks of parallel.tensor");
}

}  // namespace
}  // namespace troupe
