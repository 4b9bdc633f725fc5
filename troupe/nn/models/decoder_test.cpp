#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "troupe/core/config.h"
#include "troupe/nn/models/model.h"
#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

constexpr int64_t kVocab = 61;

ModelConfig config_of(const std::string& extra) {
  ModelConfig config;
  for (const std::string& part :
       {std::string("layers: 2, width: 32, heads: 4, vocab: 61, max_positions: 64, init_std: 0.1"),
        extra}) {
    read_config(parse_yaml("{" + part + "}", "tiny"), config);
  }
  return config;
}

std::unique_ptr<Model> built(const ModelConfig& config, const BuildOptions& options = {}) {
  auto model = build_model(config, options);
  model->for_each_param(-1, [](const std::string& name, Param& p) { initialise(p, name, 5); });
  return model;
}

Batch batch_of(int64_t rows, int64_t tokens) {
  const at::Tensor ids = at::randint(kVocab, {rows, tokens + 1}, at::kLong);
  return {.ids_BS = ids.narrow(1, 0, tokens).contiguous(),
          .labels_BS = ids.narrow(1, 1, tokens).contiguous()};
}

UnitResult whole(Model& model, const Batch& batch, const Context& context = {.training = true}) {
  return model.forward(model.num_units() - 1, hidden_states(model, batch, context), batch, context);
}

std::map<std::string, at::Tensor> gradients(Model& model) {
  std::map<std::string, at::Tensor> out;
  model.for_each_param(-1, [&](const std::string& name, Param& p) {
    if (p.value.grad().defined()) out[name] = p.value.grad().clone();
    p.value.mutable_grad().reset();
  });
  return out;
}

constexpr const char* kMoe = "moe: {experts: 4, top_k: 2, hidden: 16}";

TEST(Decoder, LossIsTheCrossEntropyOfTheLogits) {
  for (const char* form : {"ffn: 40", "ffn: 40, tie_embeddings: true, vocab_pad: 64", kMoe}) {
    const auto model = built(config_of(form));
    Batch batch = batch_of(3, 9);
    batch.weights_BS = at::ones({3, 9});
    batch.weights_BS[1][4] = 0;
    batch.labels_BS[2][8] = -100;
    const Context context = {.training = false};
    const at::Tensor z = model->logits(hidden_states(*model, batch, context));
    EXPECT_EQ(z.size(2), kVocab);
    const at::Tensor nll =
        -at::log_softmax(z, 2).gather(2, batch.labels_BS.clamp_min(0).unsqueeze(2)).squeeze(2);
    at::Tensor counted = at::ones({3, 9});
    counted[1][4] = 0;
    counted[2][8] = 0;
    const UnitResult r = whole(*model, batch, context);
    EXPECT_NEAR(r.loss_sum.item<double>(), (nll * counted).sum().item<double>(), 1e-3) << form;
    EXPECT_EQ(r.weight_sum.item<double>(), 25);
    EXPECT_TRUE(r.losses.empty());
  }
}

TEST(Decoder, ParametersAreThoseThatTheCostsCount) {
  for (const char* form :
       {"ffn: 40, bias: true, norm: {kind: layer, bias: true}, act: gelu, positions: learned",
        "kv_heads: 2, head_dim: 10, qk_norm: whole, ffn: 24, sinks: true, tie_embeddings: true",
        "qk_norm: head, ffn: 24, first_dense: 1, moe: {experts: 4, top_k: 2, hidden: 16, bias: "
        "true,"
        " shared: {experts: 1, form: gate}, router: {kind: sigmoid_bias}, output_bias: true}",
        "mla: {kv_rank: 12, q_rank: 8, nope_dim: 8, rope_dim: 4, value_dim: 6}, ffn: 24, mtp: "
        "{depth: 2}, vocab_pad: 32",
        "ffn: 20, overrides: [{layers: [1], attention: false, ffn: 8}]"}) {
    const ModelConfig config = config_of(form);
    const auto model = build_model(config);
    const ModelCosts costs = costs_of(config);
    for (int64_t u = 0; u < model->num_units(); ++u) {
      int64_t count = 0;
      model->for_each_param(u, [&](const std::string& name, Param& p) {
        const bool foreign = u > 0 && name.rfind("embed.", 0) == 0;  // shared with unit 0
        if (!foreign && p.group != Group::kState) count += p.global_numel();
      });
      EXPECT_EQ(count, costs.units[u].params.total()) << form << " unit " << u;
    }
  }
}

TEST(Decoder, UnitsVisitSharedTablesTwiceAndAWalkOfAllOnce) {
  const auto model = build_model(config_of("ffn: 8, tie_embeddings: true"));
  std::multiset<std::string> all, by_unit;
  model->for_each_param(-1, [&](const std::string& name, Param&) { all.insert(name); });
  for (int64_t u = 0; u < model->num_units(); ++u) {
    model->for_each_param(u, [&](const std::string& name, Param&) { by_unit.insert(name); });
  }
  EXPECT_EQ(all.count("embed.tokens"), 1);
  EXPECT_EQ(by_unit.count("embed.tokens"), 2);
  EXPECT_EQ(all.count("layers.1.attention.q.weight"), 1);
  by_unit.erase(by_unit.find("embed.tokens"));
  EXPECT_EQ(all, by_unit);
}

TEST(Decoder, PackedDocumentsAreAsIfAlone) {
  for (const char* form : {"kv_heads: 2, ffn: 40", "ffn: 40, window: 3, sinks: true",
                           "ffn: 40, positions: learned", "ffn: 40, qk_norm: head"}) {
    const auto model = built(config_of(form));
    Batch batch = batch_of(1, 12);
    batch.documents_BS = at::tensor({0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2}, at::kInt).unsqueeze(0);
    const Context context;
    const at::Tensor packed = model->logits(hidden_states(*model, batch, context));
    std::vector<at::Tensor> alone;
    for (const auto& [from, n] : {std::pair{0, 5}, {5, 4}, {9, 3}}) {
      const Batch one{.ids_BS = batch.ids_BS.narrow(1, from, n)};
      alone.push_back(model->logits(hidden_states(*model, one, context)));
    }
    EXPECT_TRUE(packed.allclose(at::cat(alone, 1), 1e-4, 1e-5)) << form;
    batch.documents_BS = at::Tensor();
    EXPECT_FALSE(packed.allclose(model->logits(hidden_states(*model, batch, context)), 1e-3, 1e-3))
        << form;
  }
  Batch bad = batch_of(1, 2);
  bad.documents_BS = at::tensor({1, 0}, at::kInt).unsqueeze(0);
  TROUPE_EXPECT_REFUSAL(hidden_states(*built(config_of("ffn: 8")), bad, {}),
                        "document 0 follows 1");
}

// Row 41: module 1 predicts the token after the next, from labels shifted by two against ids.
TEST(Decoder, Mtp1IsTheCrossEntropyOfLabelsShiftedByTwo) {
  const ModelConfig config = config_of("ffn: 40, mtp: {depth: 1, weight: 0.5}");
  const auto model = built(config);
  const Batch batch = batch_of(2, 7);
  const double got = whole(*model, batch).mtp_sum.item<double>();
  // Without its last column the batch has the same sum but for the positions that lost a target.
  Batch shorter = {.ids_BS = batch.ids_BS.narrow(1, 0, 6).contiguous(),
                   .labels_BS = batch.labels_BS.narrow(1, 0, 6).contiguous()};
  const double less = whole(*model, shorter).mtp_sum.item<double>();
  EXPECT_GT(got, less);
  // The last position has no target: its label changes nothing, and the one before it has.
  Batch other = batch;
  other.labels_BS = batch.labels_BS.clone();
  other.labels_BS.narrow(1, 0, 1).copy_((batch.labels_BS.narrow(1, 0, 1) + 1).remainder(kVocab));
  EXPECT_EQ(whole(*model, other).mtp_sum.item<double>(), got);  // labels[0] is no MTP target
  other.labels_BS.narrow(1, 6, 1).copy_((batch.labels_BS.narrow(1, 6, 1) + 1).remainder(kVocab));
  EXPECT_NE(whole(*model, other).mtp_sum.item<double>(), got);
}

TEST(Decoder, MtpScalesWithItsWeightAndReachesItsParameters) {
  const Batch batch = batch_of(2, 7);
  const auto sum = [&](const char* weight) {
    const auto model =
        built(config_of(std::string(kMoe) + ", mtp: {depth: 2, weight: " + weight + "}"));
    const UnitResult r = whole(*model, batch);
    EXPECT_EQ(r.losses.size(), 2);  // a module's block has its routers' losses
    (r.loss_sum + r.mtp_sum).backward();
    for (const auto& [name, g] : gradients(*model))
      EXPECT_GT(g.abs().max().item<double>(), 0) << name;
    return r.mtp_sum.item<double>();
  };
  EXPECT_NEAR(sum("0.2"), 2 * sum("0.1"), 1e-3);
}

// Row 43: a recipe's layer list.
TEST(Decoder, AMixedModelTrains) {
  const auto model =
      built(config_of("layers: 4, ffn: 40, first_dense: 1, window: 4, window_layers: '[1,0,1,0]', "
                      "moe: {experts: 4, "
                      "top_k: 2, hidden: 16}, overrides: [{layers: [2], experts: 0, ffn: 12, "
                      "kv_heads: 1}, {layers: "
                      "[3], attention: false, experts: 8}]"));
  const Batch batch = batch_of(2, 9);
  double first = 0, loss = 0;
  for (int step = 0; step < 30; ++step) {
    const UnitResult r = whole(*model, batch, {.training = true, .step = step});
    loss = (r.loss_sum / r.weight_sum).item<double>();
    if (step == 0) first = loss;
    (r.loss_sum / r.weight_sum).backward();
    const at::NoGradGuard no_grad;
    model->for_each_param(-1, [](const std::string&, Param& p) {
      if (p.value.grad().defined()) p.value.sub_(p.value.grad() * 0.5);
      p.value.mutable_grad().reset();
    });
    model->end_of_step();
  }
  EXPECT_NEAR(first, std::log(kVocab), 0.5);
  EXPECT_LT(loss, 0.7 * first);
}

TEST(Decoder, I1_ARankWithSomeUnitsHasTheWholeModelsWeights) {
  const ModelConfig config = config_of(std::string(kMoe) + ", tie_embeddings: true");
  const auto all = built(config);
  std::map<std::string, at::Tensor> want;
  all->for_each_param(-1, [&](const std::string& name, Param& p) { want[name] = p.value; });
  const auto part = built(config, {.first_unit = 2, .end_unit = 4});
  int64_t count = 0;
  part->for_each_param(-1, [&](const std::string& name, Param& p) {
    EXPECT_TRUE(at::equal(p.value, want.at(name))) << name;
    ++count;
  });
  EXPECT_GT(count, 5);
  EXPECT_LT(count, static_cast<int64_t>(want.size()));
  TROUPE_EXPECT_REFUSAL(part->forward(1, at::ones({1, 2, 32}), batch_of(1, 2), {}),
                        "does not hold the unit");
}

TEST(Decoder, DropoutIsTrainingsAloneAndAFunctionOfItsKeys) {
  const auto model = built(config_of("ffn: 40, dropout: 0.3, attn_dropout: 0.2"));
  const Batch batch = batch_of(2, 8);
  const auto loss = [&](const Context& c) {
    return whole(*model, batch, c).loss_sum.item<double>();
  };
  EXPECT_EQ(loss({.training = true, .seed = 1}), loss({.training = true, .seed = 1}));
  EXPECT_NE(loss({.training = true, .seed = 1}), loss({.training = true, .seed = 2}));
  EXPECT_NE(loss({.training = true, .step = 1}), loss({.training = true, .step = 2}));
  const auto plain = built(config_of("ffn: 40"));
  EXPECT_NEAR(loss({}), whole(*plain, batch, {}).loss_sum.item<double>(), 1e-3);
  // A later part of the step's tokens draws what the whole draws there.
  Batch second = {.ids_BS = batch.ids_BS.narrow(0, 1, 1),
                  .labels_BS = batch.labels_BS.narrow(0, 1, 1)};
  const Context c = {.training = true};
  Context later = c;
  later.first_token = 8;
  const at::Tensor both = hidden_states(*model, batch, c),
                   one = hidden_states(*model, second, later);
  EXPECT_TRUE(both.narrow(0, 1, 1).allclose(one, 1e-4, 1e-5));
}

TEST(Decoder, G4_TwoRunsHaveTheSameBits) {
  const auto model = built(config_of(std::string("qk_norm: head, ") + kMoe));
  const Batch batch = batch_of(3, 33);
  const auto run = [&] {
    whole(*model, batch).loss_sum.backward();
    return gradients(*model);
  };
  const auto a = run(), b = run();
  for (const auto& [name, g] : a) EXPECT_TRUE(at::equal(g, b.at(name))) << name;
}

TEST(Decoder, F64RunsWhole) {
  auto model = build_model(config_of(std::string("sinks: true, window: 4, ") + kMoe));
  model->for_each_param(-1, [](const std::string& name, Param& p) {
    p.allocate(at::kDouble);
    initialise(p, name, 5);
  });
  const Batch batch = batch_of(2, 6);
  const UnitResult r = whole(*model, batch);
  EXPECT_EQ(r.loss_sum.scalar_type(), at::kDouble);
  r.loss_sum.backward();
  EXPECT_EQ(gradients(*model).at("embed.tokens").scalar_type(), at::kDouble);
}

}  // namespace
}  // namespace troupe
