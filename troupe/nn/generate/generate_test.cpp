#include "troupe/nn/generate/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "troupe/core/config/config.h"
#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

std::unique_ptr<Model> tiny(const std::string& extra) {
  ModelConfig config;
  read_config(parse_yaml("{layers: 2, width: 32, heads: 4, vocab: 61, max_positions: 64, init_std: "
                         "0.3, " +
                             extra + "}",
                         "tiny"),
              config);
  auto model = build_model(config);
  model->for_each_param(-1, [](const std::string& name, Param& p) { initialize(p, name, 5); });
  return model;
}

const char* const kForms[] = {
    "ffn: 40",
    "kv_heads: 2, ffn: 40, window: 3, sinks: true",
    "kv_heads: 1, qk_norm: head, moe: {experts: 4, top_k: 2, hidden: 16}",
    "qk_norm: whole, clip_qkv: 0.5, positions: learned, tie_embeddings: true, ffn: 24",
    "ffn: 40, first_dense: 1, rope: {interleaved: true}, mla: {kv_rank: 12, q_rank: 8, nope_dim: 8,"
    " rope_dim: 4, value_dim: 6}, moe: {experts: 4, top_k: 2, hidden: 16, shared: {experts: 1}}",
};

// The training forward's logits at the last token of `ids`.
at::Tensor trained_logits(Model& model, const std::vector<int64_t>& ids) {
  const at::NoGradGuard no_grad;
  const Batch batch{.ids_BS = at::tensor(ids, at::kLong).unsqueeze(0)};
  return model.logits(hidden_states(model, batch)).select(1, std::ssize(ids) - 1).flatten();
}

GenerateConfig greedy(int64_t tokens) {
  GenerateConfig config;
  config.sample.temperature = 0;
  config.max_tokens = tokens;
  return config;
}

TokenList one(Model& model, const TokenList& prompt, const GenerateConfig& config) {
  return Generator(model).generate({prompt}, config)[0];
}

// Greedy tokens by the training forward over the whole text, or over its newest part as the window
// has it.
TokenList by_training(Model& model, TokenList ids, int64_t tokens, int64_t window = 64) {
  TokenList out;
  int64_t first = 0;  // of the text that is seen
  for (int64_t n = 0; n < tokens; ++n) {
    if (std::ssize(ids) - first > window) first = std::ssize(ids) - (window + 1) / 2;
    out.push_back(
        trained_logits(model, TokenList(ids.begin() + first, ids.end())).argmax().item<int64_t>());
    ids.push_back(out.back());
  }
  return out;
}

TEST(Generate, GreedyTokensAreTheArgmaxOfTheTrainingForwardWithoutACache) {
  for (const char* form : kForms) {
    const auto model = tiny(form);
    const TokenList ids = {3, 17, 42, 5, 9};
    EXPECT_EQ(one(*model, ids, greedy(8)), by_training(*model, ids, 8)) << form;
  }
}

TEST(Generate, TextsOfABatchAreThoseOfEachAlone) {
  const std::vector<TokenList> prompts = {
      {3, 17, 42, 5, 9}, {8}, {3, 17, 42, 7}, {60, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, {8}};
  for (const char* form : kForms) {
    const auto model = tiny(form);
    GenerateConfig config = greedy(9);
    config.stop = {by_training(*model, prompts[1], 9)[4]};  // they end at different lengths
    Generator together(*model);
    const std::vector<TokenList> got = together.generate(prompts, config);
    ASSERT_EQ(got.size(), prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(got[i], one(*model, prompts[i], config)) << form << i;
    }
  }
}

TEST(Generate, WhatWasReadBeforeIsNotReadAgain) {
  for (const char* form : kForms) {
    const auto model = tiny(form);
    Generator generator(*model);
    TokenList text = {3, 17, 42, 5, 9};
    generator.generate({text, {3, 17, 42, 8}}, greedy(1));
    EXPECT_EQ(generator.tokens_reused(), 3) << form;  // of the second prompt
    EXPECT_EQ(generator.tokens_read(), 5 + 1);
    const TokenList first = generator.generate({text}, greedy(6))[0];
    EXPECT_EQ(generator.tokens_reused(), 3 + 4);  // the last one's logits are not kept
    // A conversation: all but what was made last is known.
    text.insert(text.end(), first.begin(), first.end());
    text.push_back(11);
    const int64_t read = generator.tokens_read();
    const TokenList second = generator.generate({text}, greedy(1))[0];
    EXPECT_EQ(generator.tokens_read() - read, 2) << form;
    EXPECT_EQ(second, by_training(*model, text, 1)) << form;
  }
}

// A row of the cache has the state behind its last token alone: a longer text goes on from it, and
// one that leaves it earlier is read from its start.
TEST(Generate, LinearAttentionGoesOnFromItsStates) {
  const auto model = tiny(
      "ffn: 40, attn_gate: true, delta: {layers: '[1,0]', key_heads: 2, value_heads: 4, key_dim: "
      "6, "
      "value_dim: 5}");
  const std::vector<TokenList> prompts = {{3, 17, 42, 5, 9}, {8}, {3, 17, 42, 7}};
  const std::vector<TokenList> got = Generator(*model).generate(prompts, greedy(9));
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(got[i], by_training(*model, prompts[i], 9)) << i;
  }
  EXPECT_EQ(one(*model, prompts[0],
                [] {
                  GenerateConfig config = greedy(30);
                  config.window = 12;
                  return config;
                }()),
            by_training(*model, prompts[0], 30, 12));
  Generator generator(*model);
  TokenList text = prompts[0];
  const TokenList first = generator.generate({text}, greedy(3))[0];
  text.insert(text.end(), first.begin(), first.end());
  text.push_back(11);
  EXPECT_EQ(generator.generate({text}, greedy(1))[0], by_training(*model, text, 1));
  EXPECT_EQ(generator.tokens_reused(), 5 + 2);  // the third token was drawn and not read
  EXPECT_EQ(generator.generate({prompts[2]}, greedy(4))[0], by_training(*model, prompts[2], 4));
  EXPECT_EQ(generator.tokens_reused(), 5 + 2);
}

TEST(Generate, ATextThatFillsTheWindowGoesOnFromItsNewerHalf) {
  for (const char* form : kForms) {
    const auto model = tiny(form);
    GenerateConfig config = greedy(30);
    config.window = 12;
    const TokenList ids = {3, 17, 42, 5, 9};
    EXPECT_EQ(one(*model, ids, config), by_training(*model, ids, 30, 12)) << form;
  }
  // A prompt that is longer than the window: its end.
  const auto model = tiny(kForms[0]);
  GenerateConfig config = greedy(1);
  config.window = 4;
  EXPECT_EQ(one(*model, {1, 2, 3, 4, 5, 6, 7}, config), one(*model, {4, 5, 6, 7}, config));
}

TEST(Generate, ModelsThatLookAtOtherTokensReadTheWholeTextForEach) {
  const char* const forms[] = {
      "moe: {experts: 4, top_k: 2, hidden: 16, router: {kind: expert_choice}}",
      "moe: {experts: 4, top_k: 2, hidden: 16, capacity: {factor: 0.5, in_evaluation: true}}"};
  for (const char* form : forms) {
    const auto model = tiny(form);
    Generator generator(*model);
    const TokenList ids = {3, 17, 42, 5, 9};
    const std::vector<TokenList> got = generator.generate({ids, {8, 9}}, greedy(4));
    EXPECT_EQ(got[0], by_training(*model, ids, 4)) << form;
    EXPECT_EQ(got[1], by_training(*model, {8, 9}, 4)) << form;
    EXPECT_EQ(generator.tokens_reused(), 0);
    EXPECT_EQ(generator.tokens_read(), 5 + 6 + 7 + 8 + 2 + 3 + 4 + 5);
  }
}

TEST(Generate, ASeedFixesTheTextAndSequencesDiffer) {
  const auto model = tiny(kForms[0]);
  GenerateConfig config;
  config.max_tokens = 12;
  config.sample.temperature = 3;
  const auto texts = [&](uint64_t seed) {
    config.sample.seed = seed;
    return Generator(*model).generate({{1, 2}, {1, 2}}, config);
  };
  EXPECT_EQ(texts(1), texts(1));
  EXPECT_NE(texts(1)[0], texts(2)[0]);
  EXPECT_NE(texts(1)[0], texts(1)[1]);
}

TEST(Generate, StopsAtAStopTokenAtTheLimitAndWhenTold) {
  const auto model = tiny(kForms[0]);
  const TokenList text = one(*model, {1, 2, 3}, greedy(6));
  GenerateConfig config = greedy(6);
  config.stop = {text[3]};
  const auto first = std::find(text.begin(), text.end(), text[3]) - text.begin();
  EXPECT_EQ(std::ssize(one(*model, {1, 2, 3}, config)), first);
  int64_t calls = 0;
  const auto two = [&](int64_t, int64_t) { return ++calls < 2; };
  EXPECT_EQ(Generator(*model).generate({{1, 2, 3}}, greedy(6), two)[0].size(), 2);
  EXPECT_TRUE(one(*model, {1, 2, 3}, greedy(0)).empty());
  TROUPE_EXPECT_REFUSAL(one(*model, {}, greedy(1)), "prompt 0 is empty");
}

}  // namespace
}  // namespace troupe
