#include "troupe/nn/model/module_outputs.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <map>

#include "troupe/core/config/config.h"
#include "troupe/nn/model/model.h"

namespace troupe {
namespace {

constexpr int64_t kRows = 2, kTokens = 7, kWidth = 32, kExperts = 4, kVocab = 61;

std::unique_ptr<Model> built(const std::string& extra) {
  ModelConfig config;
  for (const std::string& part :
       {std::string("layers: 2, width: 32, heads: 4, vocab: 61, max_positions: 64, init_std: 0.3"),
        extra}) {
    read_config(parse_yaml("{" + part + "}", "tiny"), config);
  }
  auto model = build_model(config);
  model->for_each_param(-1, [](const std::string& name, Param& p) { initialize(p, name, 5); });
  return model;
}

at::Tensor ids() {
  return at::randint(kVocab, {kRows, kTokens}, at::kLong);
}

std::vector<std::string> names_of(const std::string& extra) {
  std::vector<std::string> out;
  const auto model = built(extra);
  for (const ModuleOutput& o : module_outputs(*model, ids())) out.push_back(o.name);
  return out;
}

using Names = std::vector<std::string>;

TEST(ModuleOutputs, NamesAndOrderAreThoseOfTheComputation) {
  EXPECT_EQ(
      names_of("ffn: 40, first_dense: 1, moe: {experts: 4, top_k: 2, hidden: 16}"),
      (Names{"embed.tokens", "layers.0.norm1", "layers.0.attention", "layers.0.norm2",
             "layers.0.ffn", "layers.0", "layers.1.norm1", "layers.1.attention", "layers.1.norm2",
             "layers.1.moe.router", "layers.1.moe", "layers.1", "head.norm", "head"}));
  EXPECT_EQ(names_of("layers: 1, ffn: 40, block: {kind: post_norm}"),
            (Names{"embed.tokens", "layers.0.attention", "layers.0.norm1", "layers.0.ffn",
                   "layers.0.norm2", "layers.0", "head.norm", "head"}));
  EXPECT_EQ(names_of("layers: 1, ffn: 40, block: {kind: parallel}"),
            (Names{"embed.tokens", "layers.0.norm", "layers.0.ffn", "layers.0.attention",
                   "layers.0", "head.norm", "head"}));
  EXPECT_EQ(
      names_of("layers: 1, ffn: 40, overrides: [{layers: [0], attention: false}]"),
      (Names{"embed.tokens", "layers.0.norm2", "layers.0.ffn", "layers.0", "head.norm", "head"}));
}

TEST(ModuleOutputs, AreWhatTheModelComputes) {
  const at::NoGradGuard no_grad;
  for (const char* form : {"ffn: 40", "moe: {experts: 4, top_k: 2, hidden: 16}",
                           "ffn: 40, tie_embeddings: true, mtp: {depth: 1}"}) {
    const auto model = built(form);
    const at::Tensor tokens = ids();
    std::map<std::string, at::Tensor> y;
    for (const ModuleOutput& o : module_outputs(*model, tokens)) {
      EXPECT_TRUE(y.emplace(o.name, o.y).second) << o.name << " is there twice";
      EXPECT_EQ(o.y.size(0), kRows * kTokens) << o.name;
      const bool router = o.name.ends_with(".router");
      EXPECT_EQ(o.y.size(1), o.name == "head" ? kVocab : router ? kExperts : kWidth) << o.name;
    }
    const std::string ffn = y.contains("layers.1.moe") ? ".moe" : ".ffn";
    at::Tensor h = y.at("embed.tokens");
    for (const std::string layer : {"layers.0", "layers.1"}) {
      h = h + y.at(layer + ".attention") + y.at(layer + ffn);
      EXPECT_TRUE(h.allclose(y.at(layer), 1e-4, 1e-4)) << form << ": " << layer;
    }
    const at::Tensor logits = model->logits(hidden_states(*model, {.ids_BS = tokens}));
    EXPECT_TRUE(at::equal(logits.reshape({-1, kVocab}), y.at("head"))) << form;
  }
}

}  // namespace
}  // namespace troupe
