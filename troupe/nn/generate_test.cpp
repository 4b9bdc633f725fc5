#include "troupe/nn/generate.h"

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
  model->for_each_param(-1, [](const std::string& name, Param& p) { initialise(p, name, 5); });
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

TEST(Generate, GreedyTokensAreTheArgmaxOfTheTrainingForwardWithoutACache) {
  for (const char* form : kForms) {
    const auto model = tiny(form);
    std::vector<int64_t> ids = {3, 17, 42, 5, 9};
    const std::vector<int64_t> got = generate(*model, ids, greedy(8));
    ASSERT_EQ(got.size(), 8);
    for (const int64_t token : got) {
      EXPECT_EQ(token, trained_logits(*model, ids).argmax().item<int64_t>()) << form;
      ids.push_back(token);
    }
  }
}

TEST(Generate, ASeedFixesTheTextAndSequencesDiffer) {
  const auto model = tiny(kForms[0]);
  GenerateConfig config;
  config.max_tokens = 12;
  config.sample.temperature = 3;
  const auto text = [&](uint64_t seed, uint32_t sequence) {
    config.sample.seed = seed;
    return generate(*model, {1, 2}, config, {}, sequence);
  };
  EXPECT_EQ(text(1, 0), text(1, 0));
  EXPECT_NE(text(1, 0), text(2, 0));
  EXPECT_NE(text(1, 0), text(1, 1));
}

TEST(Generate, StopsAtAStopTokenAtTheLimitAndWhenTold) {
  const auto model = tiny(kForms[0]);
  const std::vector<int64_t> text = generate(*model, {1, 2, 3}, greedy(6));
  GenerateConfig config = greedy(6);
  config.stop = {text[3]};
  const auto first = std::find(text.begin(), text.end(), text[3]) - text.begin();
  EXPECT_EQ(static_cast<int64_t>(generate(*model, {1, 2, 3}, config).size()), first);
  int64_t calls = 0;
  EXPECT_EQ(generate(*model, {1, 2, 3}, greedy(6), [&](int64_t) { return ++calls < 2; }).size(), 2);
  EXPECT_TRUE(generate(*model, {1, 2, 3}, greedy(0)).empty());
  TROUPE_EXPECT_REFUSAL(generate(*model, {}, greedy(1)), "a prompt of 0");
}

}  // namespace
}  // namespace troupe
