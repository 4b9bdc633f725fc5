#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "troupe/core/config/config.h"
#include "troupe/nn/blocks/block.h"
#include "troupe/nn/model/model.h"
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
  model->for_each_param(-1, [](const std::string& name, Param& p) { initialize(p, name, 5); });
  return model;
}

Batch batch_of(int64_t rows, int64_t tokens) {
  const at::Tensor ids = at::randint(kVocab, {rows, tokens + 1}, at::kLong);
  return {.ids_BS = ids.narrow(1, 0, tokens).contiguous(),
          .labels_BS = ids.narrow(1, 1, tokens).contiguous()};
}

// What the head gives, with the routers' losses of MTP modules.
UnitResult whole(Model& model, const Batch& batch, const Context& context = {.training = true}) {
  UnitResult out;
  std::vector<MoeLoss> losses;
  for (int64_t u = 0; u < model.num_units(); ++u) {
    out = model.forward(u, out.h, batch, context);
    if (u > model.config().layers)
      losses.insert(losses.end(), out.losses.begin(), out.losses.end());
  }
  out.losses = losses;
  return out;
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
  std::vector<std::string> forms{
      "ffn: 40, bias: true, norm: {kind: layer, bias: true}, act: gelu, positions: learned",
      "kv_heads: 2, head_dim: 10, qk_norm: whole, ffn: 24, sinks: true, tie_embeddings: true",
      "qk_norm: head, ffn: 24, first_dense: 1, moe: {experts: 4, top_k: 2, hidden: 16, bias: "
      "true,"
      " shared: {experts: 1, form: gate}, router: {kind: sigmoid_bias}, output_bias: true}",
      "mla: {kv_rank: 12, q_rank: 8, nope_dim: 8, rope_dim: 4, value_dim: 6}, ffn: 24, mtp: "
      "{depth: 2}, vocab_pad: 32",
      "ffn: 20, overrides: [{layers: [1], attention: false, ffn: 8}]",
      "ffn: 20, attn_gate: true, delta: {layers: '[1,0]', key_heads: 2, value_heads: 4, key_dim: "
      "6, "
      "value_dim: 5}",
      "block: {kind: parallel}, ffn: 20, overrides: [{layers: [1], attention: false, ffn: 8}]"};
  for (const std::string_view router : RouterConfig::kinds()) {
    forms.push_back("moe: {experts: 4, top_k: 2, hidden: 16, router: {kind: " +
                    std::string(router) + ", bias: true}}");
  }
  for (const std::string& form : forms) {
    const ModelConfig config = config_of(form);
    const auto model = build_model(config);
    const ModelCosts costs = costs_of(config);
    for (int64_t u = 0; u < model->num_units(); ++u) {
      int64_t count = 0;
      model->for_each_param(u, [&](const std::string& name, Param& p) {
        const bool foreign = u > 0 && name.rfind("embed.", 0) == 0;  // shared with unit 0
        if (!foreign && p.group != Group::kState) count += c10::multiply_integers(p.global);
      });
      EXPECT_EQ(count, costs.units[u].params.total()) << form << " unit " << u;
    }
  }
}

// Four MoE layers: whatever stages hold them, each gives its loss once, and the values have one
// sum.
TEST(Decoder, A4_StagesLossesSumToTheModels) {
  const ModelConfig config = config_of(
      "layers: 4, moe: {experts: 4, top_k: 2, hidden: 16, router: {balance: {aux_loss: 0, "
      "batched_loss: 0.1}}}");
  const Batch batch = batch_of(2, 16);
  const auto total = [&](const std::vector<int64_t>& ends) {
    double sum = 0;
    int64_t from = 0, terms = 0;
    at::Tensor h;
    for (const int64_t end : ends) {
      std::vector<int64_t> units;
      for (int64_t unit = from; unit < end; ++unit) units.push_back(unit);
      const auto stage = built(config, {.units = units});
      for (; from < end; ++from) {
        UnitResult r = stage->forward(from, h, batch, {.training = true});
        h = r.h;
        terms += static_cast<int64_t>(r.losses.size());
        for (const MoeLoss& loss : r.losses) sum += loss.value.item<double>();
      }
    }
    EXPECT_EQ(terms, 4);
    return sum;
  };
  const double whole = total({6});
  EXPECT_GT(whole, 0.1 * 0.9);
  EXPECT_LT(whole, 0.1 * 2);
  EXPECT_EQ(total({3, 6}), whole);  // two stages of two blocks
  EXPECT_EQ(total({2, 4, 6}), whole);
  EXPECT_EQ(total({1, 2, 3, 4, 5, 6}), whole);
}

// A4's scope: of a rank its own counts, of a group those that its ranks share, or those of all.
TEST(Decoder, A4_TheScopeOfABatchedLossIsWhoseCountsItReads) {
  const Batch batch = batch_of(2, 16);
  const auto loss = [&](const std::string& scope, bool group, bool all) {
    const auto model =
        built(config_of("moe: {experts: 4, top_k: 2, hidden: 16, router: {balance: {aux_loss: 0, "
                        "batched_loss: 0.1, batched_scope: " +
                        scope + "}}}"));
    // The other ranks have so many times this rank's tokens, all for expert 0.
    const auto others = [](double times) -> SumOver {
      return [times](const at::Tensor& x) {  // [.., E + 1], the last column is the tokens
        at::Tensor sum = x.clone();
        const at::Tensor tokens = x.select(-1, 4) * static_cast<int64_t>(times);
        sum.select(-1, 0).add_(tokens * 2);
        sum.select(-1, 4).add_(tokens);
        return sum;
      };
    };
    Context context = {.training = true};
    if (group) context.group_sum = others(1);
    if (all) context.all_sum = others(3);
    const UnitResult r = model->forward(1, model->forward(0, {}, batch, context).h, batch, context);
    return r.losses.at(0).value.item<double>();
  };
  const double own = loss("rank", false, false);
  EXPECT_EQ(loss("rank", true, true), own);
  EXPECT_EQ(loss("group", false, true), own);
  const double group = loss("group", true, false), all = loss("all", false, true);
  EXPECT_GT(std::abs(group - own), 1e-6);
  EXPECT_GT(std::abs(all - own), 1e-6);
  EXPECT_GT(std::abs(all - group), 1e-6);
  EXPECT_EQ(loss("group", true, true), group);
  EXPECT_NEAR(loss("all", true, true), all / 2, 1e-15);  // this rank's share of its microbatch
}

// The bias of sigmoid_bias: its mean stays where `center` takes it out after each step.
TEST(Decoder, R10_CenterTakesTheMeanOutOfTheBias) {
  const auto mean_of = [](const std::string& center) {
    const auto model = built(config_of(
        "moe: {experts: 3, top_k: 1, hidden: 16, router: {kind: sigmoid_bias, bias_rate: 0.01, "
        "center: " +
        center + "}}"));
    for (int step = 0; step < 5; ++step) {
      whole(*model, batch_of(2, 16));
      model->end_of_step();
    }
    double mean = 0, largest = 0;
    model->for_each_param(-1, [&](const std::string& name, Param& p) {
      if (name.find("balance_bias") == std::string::npos) return;
      mean = std::max(mean, std::abs(p.value.mean().item<double>()));
      largest = std::max(largest, p.value.abs().max().item<double>());
    });
    EXPECT_GT(largest, 0.005);
    return mean;
  };
  EXPECT_LT(mean_of("true"), 1e-7);
  EXPECT_GT(mean_of("false"), 1e-3);  // one expert of three is above the mean or below it
}

// yarn's cosine and sine are times attention_factor, which follows from `factor` where it is
// absent.
TEST(Decoder, RopesAttentionFactorScalesWhatPositionsDo) {
  const Batch batch = batch_of(1, 24);
  const auto states = [&](const std::string& more) {
    const auto model = built(
        config_of("ffn: 40, rope: {scaling: yarn, factor: 4, original_positions: 16" + more + "}"));
    return hidden_states(*model, batch);
  };
  const double usual = 0.1 * std::log(4.0) + 1;
  const at::Tensor absent = states("");
  EXPECT_TRUE(at::equal(states(", attention_factor: " + to_text(usual)), absent));
  EXPECT_FALSE(at::allclose(states(", attention_factor: 3"), absent, 1e-4, 1e-4));
}

// The first n MoE layers, counted without the dense ones between them, and never an MTP block.
TEST(Decoder, R14_ATableRoutesAsManyMoeLayersAsItSays) {
  const auto routed_by_table = [](const std::string& form) {
    const auto model = built(config_of(form));
    const Batch batch = batch_of(2, 9);
    at::Tensor h;
    std::string out;
    for (int64_t u = 0; u < model->num_units(); ++u) {
      const UnitResult r = model->forward(u, h, batch, {.training = true});
      h = r.h;
      if (r.choices.empty()) continue;
      const at::Tensor row = batch.ids_BS.flatten().remainder(4).to(at::kInt);
      out += r.choices[0].ids_TK.select(1, 0).equal(row) ? 't' : 'r';
    }
    return out;
  };
  const std::string moe = "moe: {experts: 4, top_k: 2, hidden: 16, table_layers: ";
  EXPECT_EQ(routed_by_table("layers: 4, " + moe + "0}"), "rrrr");
  EXPECT_EQ(routed_by_table("layers: 4, " + moe + "1}"), "trrr");
  EXPECT_EQ(routed_by_table("layers: 4, " + moe + "2}"), "ttrr");
  EXPECT_EQ(routed_by_table("layers: 4, " + moe + "4}, mtp: {depth: 1}"), "ttttr");
  EXPECT_EQ(routed_by_table("layers: 5, ffn: 8, first_dense: 1, " + moe + "1, layers: '2'}"), "tr");
  EXPECT_EQ(
      routed_by_table("layers: 4, ffn: 8, overrides: [{layers: [1], experts: 0}], " + moe + "2}"),
      "ttr");
  EXPECT_THROW(build_model(config_of("layers: 4, " + moe + "5}")), Error);
  EXPECT_THROW(build_model(config_of("layers: 4, ffn: 8, first_dense: 2, " + moe + "3}")), Error);
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
  // Without its last column the batch has the same sum except for the positions that lost a target.
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

// Losses of so many steps of gradient descent on one batch.
std::pair<double, double> first_and_last_loss(Model& model, int steps) {
  const Batch batch = batch_of(2, 9);
  double first = 0, loss = 0;
  for (int step = 0; step < steps; ++step) {
    const UnitResult r = whole(model, batch, {.training = true, .step = step});
    loss = (r.loss_sum / r.weight_sum).item<double>();
    if (step == 0) first = loss;
    (r.loss_sum / r.weight_sum).backward();
    const at::NoGradGuard no_grad;
    model.for_each_param(-1, [](const std::string&, Param& p) {
      if (p.value.grad().defined()) p.value.sub_(p.value.grad() * 0.5);
      p.value.mutable_grad().reset();
    });
    model.end_of_step();
  }
  return {first, loss};
}

// Row 43: a recipe's layer list.
TEST(Decoder, AMixedModelTrains) {
  const auto model =
      built(config_of("layers: 4, ffn: 40, first_dense: 1, window: 4, window_layers: '[1,0,1,0]', "
                      "moe: {experts: 4, "
                      "top_k: 2, hidden: 16}, overrides: [{layers: [2], experts: 0, ffn: 12, "
                      "kv_heads: 1}, {layers: "
                      "[3], attention: false, experts: 8}]"));
  const auto [first, last] = first_and_last_loss(*model, 30);
  EXPECT_NEAR(first, std::log(kVocab), 0.5);
  EXPECT_LT(last, 0.7 * first);
}

// x = norm(h); h + attention(x) + ffn(x): of one layer, what a block without feed-forward and one
// without attention add.
TEST(Decoder, AParallelBlockAddsBothOfOneNorm) {
  const at::NoGradGuard no_grad;
  for (const char* form : {"ffn: 24", kMoe}) {
    const std::string layer = std::string("layers: 1, ") + form;
    const auto parallel = built(config_of(layer + ", block: {kind: parallel}"));
    const auto attends = built(config_of(layer));
    const auto feeds = built(config_of(layer + ", overrides: [{layers: [0], attention: false}]"));
    attends->for_each_param(1, [](const std::string& name, Param& p) {
      if (name.ends_with("w2")) p.value.zero_();
    });
    const Batch batch = batch_of(2, 7);
    const at::Tensor h = at::randn({14, 32});
    const auto added = [&](Model& model) { return model.forward(1, h, batch, {}).h - h; };
    EXPECT_GT(added(*attends).abs().max().item<double>(), 1e-3);
    EXPECT_TRUE(at::allclose(added(*parallel), added(*attends) + added(*feeds), 1e-4, 1e-5))
        << form;
    EXPECT_FALSE(at::allclose(added(*built(config_of(layer))), added(*parallel), 1e-3, 1e-4))
        << form;
  }
}

// Row 139. A norm behind each part too, as Gemma 2 has them.
class Sandwich : public Block {
 public:
  explicit Sandwich(const BlockShape& s)
      : parts_(s), norms_(4, NormModule(s.model.norm, s.model.width)) {}
  UnitResult forward(const at::Tensor& h, const Batch& batch, const Packing& packing,
                     const Context& context) override {
    const BlockCall call = parts_.call(batch, packing, context);
    UnitResult result;
    const at::Tensor a = h + norms_[1].forward(parts_.attend(norms_[0].forward(h), call));
    result.h = a + norms_[3].forward(parts_.feed_forward(norms_[2].forward(a), call, result));
    return result;
  }
  MoeLayer* moe() override { return parts_.moe.get(); }
  void for_each(const std::string& prefix, const VisitParam& f) override {
    for_each_member_param(*this, prefix, f);
  }
  static void visit(auto& m, auto&& f) {
    f("norms", m.norms_);
    f("attention", m.parts_.attention);
    f("ffn", m.parts_.ffn);
    f("moe", m.parts_.moe);
  }

 private:
  BlockParts parts_;
  std::vector<NormModule> norms_;
};

TEST(Decoder, ABlockOfOnesOwnInOneFileTrains) {
  const auto model = built(
      config_of("layers: 3, first_dense: 1, ffn: 24, moe: {experts: 4, top_k: 2, hidden: 16}"),
      {.block = [](const BlockShape& shape) { return std::make_unique<Sandwich>(shape); }});
  std::set<std::string> names;
  model->for_each_param(-1, [&](const std::string& name, Param&) { names.insert(name); });
  EXPECT_TRUE(names.count("layers.2.norms.3.weight") == 1 &&
              names.count("layers.0.norm1.weight") == 0);
  int64_t moe_layers = 0;
  model->for_each_moe([&](int64_t, MoeLayer&) { ++moe_layers; });
  EXPECT_EQ(moe_layers, 2);
  const auto [first, last] = first_and_last_loss(*model, 30);
  EXPECT_LT(last, 0.7 * first);
}

TEST(Decoder, I1_ARankWithSomeUnitsHasTheWholeModelsWeights) {
  const ModelConfig config = config_of(std::string(kMoe) + ", tie_embeddings: true");
  const auto all = built(config);
  std::map<std::string, at::Tensor> want;
  all->for_each_param(-1, [&](const std::string& name, Param& p) { want[name] = p.value; });
  const auto part = built(config, {.units = {3, 2}});
  int64_t count = 0;
  part->for_each_param(-1, [&](const std::string& name, Param& p) {
    EXPECT_TRUE(at::equal(p.value, want.at(name))) << name;
    ++count;
  });
  EXPECT_GT(count, 5);
  EXPECT_LT(count, static_cast<int64_t>(want.size()));
  EXPECT_TRUE(part->has_unit(2) && !part->has_unit(1));
  part->for_each_param(1, [](const std::string& name, Param&) { ADD_FAILURE() << name; });
  TROUPE_EXPECT_REFUSAL(part->forward(1, at::ones({1, 2, 32}), batch_of(1, 2), {}),
                        "this rank does not hold unit 1");
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

// Row 62: whatever else is in the batch, and however many rows that are.
TEST(Decoder, ASequencesBitsDoNotDependOnItsBatch) {
  for (const char* kind : {"ffn: 48", kMoe}) {
    const auto model = built(config_of(kind));
    const Batch all = batch_of(9, 40);
    const at::Tensor want = hidden_states(*model, all, {});
    for (const auto& [first, rows] : {std::pair{0, 1}, {3, 1}, {8, 1}, {2, 5}}) {
      const Batch part{.ids_BS = all.ids_BS.narrow(0, first, rows).contiguous(),
                       .labels_BS = all.labels_BS.narrow(0, first, rows).contiguous()};
      EXPECT_TRUE(at::equal(hidden_states(*model, part, {}), want.narrow(0, first, rows)))
          << kind << ": rows " << first << " and on, " << rows;
    }
  }
}

TEST(Decoder, F64RunsWhole) {
  auto model = build_model(config_of(std::string("sinks: true, window: 4, ") + kMoe));
  model->for_each_param(-1, [](const std::string& name, Param& p) {
    p.allocate(at::kDouble);
    initialize(p, name, 5);
  });
  const Batch batch = batch_of(2, 6);
  const UnitResult r = whole(*model, batch);
  EXPECT_EQ(r.loss_sum.scalar_type(), at::kDouble);
  r.loss_sum.backward();
  EXPECT_EQ(gradients(*model).at("embed.tokens").scalar_type(), at::kDouble);
}

}  // namespace
}  // namespace troupe
