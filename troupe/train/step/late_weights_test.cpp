// A backward in halves, I then W, is the whole one: every gradient of every parameter, bit for bit,
// summed over microbatches whose halves overlap.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "troupe/core/config/config.h"
#include "troupe/schedule/parse_schedule_test.h"
#include "troupe/train/optim/loss_mean.h"
#include "troupe/train/step/executor.h"

namespace troupe {
namespace {

constexpr int64_t kVocab = 61, kSequence = 8;
constexpr int kMicrobatches = 3;

struct Case {
  std::string name, model;
  at::ScalarType type = at::kFloat;
  int late = 0;  // gradients that W makes of one microbatch, at the least
  int layers = 2;
};

// Units 0 to 3: the embedding, two blocks, or a block and an MTP module, and the head. In blocks
// the halves of two microbatches overlap; the head's W comes at the end.
constexpr const char* kWhole =
    "0: F0.0 F1.0 F2.0 F3.0 B3.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 F3.1 B3.1 B2.1 B1.1 B0.1 F0.2 F1.2 "
    "F2.2 F3.2 B3.2 B2.2 B1.2 B0.2 U\n";
constexpr const char* kHalves =
    "0: F0.0 F1.0 F2.0 F3.0 I3.0 I2.0 I1.0 I0.0 F0.1 F1.1 F2.1 F3.1 I3.1 I2.1 I1.1 I0.1 W2.0 W1.0 "
    "W0.0 F0.2 L1.2 F2.2 F3.2 W2.1 I3.2 I2.2 F1.2 I1.2 I0.2 W1.1 W0.1 W3.0 W3.1 W3.2 W2.2 W1.2 "
    "W0.2 U\n";

struct StepGradients {
  std::map<std::string, at::Tensor> gradients;
  int late = 0;  // of the first microbatch
};

StepGradients gradients_of(const Case& c, const char* list) {
  ModelConfig config;
  const std::string base = "layers: " + std::to_string(c.layers) +
                           ", width: 32, heads: 4, max_positions: 64, init_std: 0.1, vocab: ";
  read_config(parse_yaml("{" + base + std::to_string(kVocab) + ", " + c.model + "}", "m"), config);
  const auto model = build_model(config);
  std::vector<NamedParam> params;
  model->for_each_param(-1, [&](const std::string& name, Param& p) {
    params.push_back({name, &p});
  });
  ParamStore store(params, at::TensorOptions(c.type),
                   [](const NamedParam&) { return BucketKey{}; });
  store.initialize_all(3);
  StepInput input{.all_microbatches = kMicrobatches};
  std::vector<double> weights;
  for (int m = 0; m < kMicrobatches; ++m) {
    const at::Tensor ids = (at::arange(2 * kSequence) * (m + 3)).remainder(kVocab).view({2, -1});
    input.microbatches.push_back({.ids_BS = ids, .labels_BS = (ids * 5 + 1).remainder(kVocab)});
    weights.push_back(static_cast<double>(ids.numel()));
  }
  input.factors =
      loss_factors(LossMean::kTokens, weights, kMicrobatches * weights[0], kMicrobatches);
  input.context.training = true;
  const Faults faults("");
  Pulse pulse;
  Executor executor(*model, store, faults, {0, 1, 2, 3}, pulse);
  StepGradients out;
  executor.run(parse_schedule(list)[0], input,
               {.gradient = [&](const Action& a, int64_t, const at::Tensor&) {
                 out.late += a.kind == Kind::kBackwardWeight && a.microbatch == 0 ? 1 : 0;
               }});
  for (size_t s = 0; s < store.slots().size(); ++s) {
    out.gradients[store.slots()[s].named.name] =
        store.gradients().of(static_cast<int64_t>(s)).clone();
  }
  return out;
}

class LateWeights : public ::testing::TestWithParam<Case> {};

TEST_P(LateWeights, AreTheWholesBits) {
  const StepGradients whole = gradients_of(GetParam(), kWhole),
                      halves = gradients_of(GetParam(), kHalves);
  EXPECT_EQ(whole.late, 0);
  EXPECT_GE(halves.late, GetParam().late);
  for (const auto& [name, gradient] : whole.gradients) {
    EXPECT_TRUE(at::equal(gradient, halves.gradients.at(name))) << name;
    EXPECT_GT(gradient.abs().max().item<double>(), 0) << name;
  }
}

constexpr const char* kMoe =
    "moe: {experts: 8, top_k: 2, hidden: 16, shared: {experts: 1, hidden: 16}, router: {kind: "
    "topk_softmax, balance: {aux_loss: 0.05, z_loss: 0.001}}";

// A block's late weights: q, k, v, out, and a feed-forward's two, or the experts' and the shared's.
INSTANTIATE_TEST_SUITE_P(
    Blocks, LateWeights,
    ::testing::Values(
        Case{"dense", "ffn: 48, qk_norm: head", at::kFloat, 2 * 6},
        Case{"dense_bias", "ffn: 48, bias: true, kv_heads: 2", at::kFloat, 2 * (6 + 3 + 2)},
        Case{"dense_bf16", "ffn: 48", at::kBFloat16, 2 * 6},
        Case{"latent_attention",
             "mla: {kv_rank: 12, q_rank: 8, nope_dim: 8, rope_dim: 4, value_dim: 6}, ffn: 24",
             at::kFloat, 2 * 6},
        Case{"moe", std::string(kMoe) + "}", at::kFloat, 2 * 8},
        Case{"moe_bf16", std::string(kMoe) + "}", at::kBFloat16, 2 * 8},
        Case{"moe_latent", std::string(kMoe) + ", latent: 8}", at::kFloat, 2 * 10},
        Case{"moe_again", std::string(kMoe) + ", recompute: layer}", at::kFloat, 2 * 8},
        Case{"moe_hidden_again", std::string(kMoe) + ", recompute: expert}", at::kFloat, 2 * 8},
        Case{"moe_mtp", std::string(kMoe) + "}, tie_embeddings: true, mtp: {depth: 1}", at::kFloat,
             2 * 8, 1}),
    [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace troupe
