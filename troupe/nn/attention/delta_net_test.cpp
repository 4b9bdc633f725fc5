#include "troupe/nn/attention/delta_net.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <map>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/nn/attention/kv_cache.h"
#include "troupe/nn/model/model.h"

namespace troupe {
namespace {

// A linear layer, and one of attention with its gate.
constexpr const char* kTinyDelta =
    "delta: {layers: '[1,0]', key_heads: 2, value_heads: 4, key_dim: 6, value_dim: 5}";

std::unique_ptr<Model> delta_model(const std::string& more = "layers: 2",
                                   const std::string& delta = kTinyDelta) {
  ModelConfig config;
  read_config(parse_yaml("{width: 32, heads: 4, vocab: 61, max_positions: 256, init_std: 0.2, ffn: "
                         "40, attn_gate: true, " +
                             delta + ", " + more + "}",
                         "tiny"),
              config);
  validate(config);
  auto model = build_model(config);
  model->for_each_param(-1, [](const std::string& name, Param& p) { initialize(p, name, 5); });
  return model;
}

at::Tensor logits_of(Model& model, const Batch& batch) {
  const at::NoGradGuard no_grad;
  return model.logits(hidden_states(model, batch));
}

std::map<std::string, at::Tensor> taken_gradients(Model& model) {
  std::map<std::string, at::Tensor> out;
  model.for_each_param(-1, [&](const std::string& name, Param& p) {
    if (p.value.grad().defined()) out[name] = p.value.grad().clone();
    p.value.mutable_grad().reset();
  });
  return out;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(DeltaNet, PackedDocumentsAreComputedAndLearnedAsIfTheyWereAlone) {
  const auto model = delta_model();
  const at::Tensor ids = at::randint(61, {1, 100}, at::kLong);
  const at::Tensor documents =
      at::cat({at::zeros({1, 30}, at::kInt), at::ones({1, 70}, at::kInt)}, 1);
  const auto part = [&](int64_t from, int64_t n) {
    return Batch{.ids_BS = ids.narrow(1, from, n)};
  };
  const Batch packed{.ids_BS = ids, .documents_BS = documents};
  const at::Tensor together = logits_of(*model, packed);
  EXPECT_LT(difference(together.narrow(1, 0, 30), logits_of(*model, part(0, 30))), 2e-5);
  EXPECT_LT(difference(together.narrow(1, 30, 70), logits_of(*model, part(30, 70))), 2e-5);
  EXPECT_GT(difference(together, logits_of(*model, Batch{.ids_BS = ids})), 1e-2);

  hidden_states(*model, packed).square().sum().backward();
  const auto got = taken_gradients(*model);
  (hidden_states(*model, part(0, 30)).square().sum() +
   hidden_states(*model, part(30, 70)).square().sum())
      .backward();
  const auto want = taken_gradients(*model);
  ASSERT_EQ(got.size(), want.size());
  EXPECT_TRUE(want.contains("layers.0.attention.a_log"));
  EXPECT_TRUE(want.contains("layers.1.attention.gate.weight"));
  for (const auto& [name, gradient] : want) {
    EXPECT_LT(difference(got.at(name), gradient), 1e-4 * (1 + gradient.abs().max().item<double>()))
        << name;
  }
}

TEST(DeltaNet, NoTokenSeesALaterOne) {
  const auto model = delta_model();
  const at::Tensor ids = at::randint(61, {2, 90}, at::kLong);
  at::Tensor other = ids.clone();
  other.narrow(1, 80, 10).copy_((other.narrow(1, 80, 10) + 1).remainder(61));
  const at::Tensor a = logits_of(*model, {.ids_BS = ids}), b = logits_of(*model, {.ids_BS = other});
  EXPECT_EQ(difference(a.narrow(1, 0, 80), b.narrow(1, 0, 80)), 0);
  EXPECT_GT(difference(a.narrow(1, 80, 10), b.narrow(1, 80, 10)), 1e-2);
}

TEST(DeltaNet, TheCacheHoldsStatesOfEachRow) {
  const at::NoGradGuard no_grad;
  const auto model = delta_model();
  const at::Tensor ids = at::randint(61, {2, 70}, at::kLong);
  const at::Tensor want = logits_of(*model, {.ids_BS = ids});
  KvCache cache(2, 3, 80);
  int64_t from = 0;
  for (const int64_t n : {65, 1, 1, 3}) {
    Batch batch{.ids_BS = ids.narrow(1, from, n)};
    cache.use({2, 0});
    batch.cache = &cache;
    batch.positions_BS = cache.positions(n);
    EXPECT_LT(difference(logits_of(*model, batch), want.narrow(1, from, n)), 5e-5) << from;
    cache.advance(n);
    from += n;
  }
  cache.copy(2, 1, 70);
  EXPECT_EQ(cache.length(1), 70);
  cache.use({1});
  EXPECT_GT(cache.states(0).b.abs().max().item<double>(), 0);
  EXPECT_THROW(cache.copy(2, 1, 60), Error);  // of a state there is no part
  cache.copy(1, 1, 0);
  EXPECT_EQ(cache.states(0).b.abs().max().item<double>(), 0);
  cache.grow(5, 80);
  cache.use({0});
  EXPECT_GT(cache.states(0).b.abs().max().item<double>(), 0);
}

TEST(DeltaNet, DecaysBeginBetweenTheirBounds) {
  const auto model = delta_model(
      "layers: 1",
      "delta: {layers: '1', key_heads: 16, value_heads: 512, key_dim: 2, value_dim: 2}");
  model->for_each_param(-1, [](const std::string& name, Param& p) {
    if (!name.ends_with("a_log")) return;
    const at::Tensor a = p.value.detach().exp();
    EXPECT_GE(a.min().item<double>(), 0.0099);
    EXPECT_LE(a.max().item<double>(), 16.001);
    EXPECT_NEAR(a.mean().item<double>(), 8, 1);
  });
}

}  // namespace
}  // namespace troupe
