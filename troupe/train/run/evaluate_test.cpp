#include "troupe/train/run/evaluate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "troupe/core/config/config.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/testing/torch/ranks.h"
#include "troupe/train/layout/parallel_setup.h"
#include "troupe/train/run/open_data.h"
#include "troupe/train/run/sample.h"

namespace troupe {
namespace {

Recipe nano(const std::string& text_file) {
  Recipe r;
  read_config(parse_yaml("model: {layers: 1, width: 32, heads: 4, vocab: 256, max_positions: 64, "
                         "moe: {experts: 4, hidden: 32}}\n"
                         "data: {valid: [{kind: text, path: " +
                             text_file +
                             "}], sequence: 16, tokenizer: bytes}\n"
                             "train: {global_batch: 4, steps: 1}\n"
                             "checkpoint: {dir: run}\nrun: {device: cpu}\n",
                         "nano"),
              r);
  return r;
}

class Evaluate : public ::testing::Test {
 protected:
  Evaluate() {
    testing::put_file(folder_ / "text.txt", "The quick brown fox jumps over the lazy dog, and on.");
    recipe_ = nano(folder_ / "text.txt");
    learner_ = std::make_unique<Learner>(resolve_alone(recipe_), c10::Device(c10::kCPU), none_);
  }

  testing::TemporaryFolder folder_;
  Recipe recipe_;
  Faults none_;
  std::unique_ptr<Learner> learner_;
};

// 52 bytes are three samples of 16 targets and one that is cut: the mean is over targets, so the
// size of the batches does not matter.
TEST_F(Evaluate, TheLossIsThatOfAllTargetsForAnyBatch) {
  const OpenedData opened = open_valid(resolve_alone(recipe_), Log());
  const Dataset& set = *opened.data.valid.at(0).second;
  const SetOptions one{.rows = 1, .tokenizer = opened.tokenizer.get()};
  SetOptions three = one;
  three.rows = 3;
  const SetScore a = score_set(*learner_, set, one), b = score_set(*learner_, set, three);
  EXPECT_GT(a.weight, 0);
  EXPECT_EQ(a.weight, b.weight);
  EXPECT_NEAR(a.loss(), b.loss(), 1e-6);
  EXPECT_EQ(a.bytes, static_cast<int64_t>(a.weight));  // an id is a byte
  EXPECT_NEAR(a.bits_per_byte(), a.loss() / std::log(2.0), 1e-9);
  EXPECT_NEAR(a.perplexity(), std::exp(a.loss()), 1e-6);
  SetOptions first = one;
  first.batches = 1;
  EXPECT_LT(score_set(*learner_, set, first).weight, a.weight);
  int asked = 0;
  first.batches = 0;
  first.stop = [&] { return ++asked > 2; };
  EXPECT_EQ(score_set(*learner_, set, first).weight, 32);
}

// Ranks take batches of two in turns, and read no others; behind the last some have none.
void expect_one_process(World& world, const Recipe& recipe, Learner& alone) {
  const ResolvedRun run = resolve(recipe, world);
  const OpenedData opened = open_valid(run, Log());
  const Dataset& set = *opened.data.valid.at(0).second;
  const auto setup =
      std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), run);
  ASSERT_EQ(setup->state.size(), world.size());
  Faults none;
  Learner learner(run, c10::Device(c10::kCPU), none, setup);
  for (const int64_t batches : {0, 1, 5}) {
    SetOptions options{.rows = 2, .batches = batches, .tokenizer = opened.tokenizer.get()};
    const SetScore one = score_set(alone, set, options);
    int64_t turns = 0;
    options.stop = [&turns] { return ++turns < 0; };
    const SetScore all = score_set(learner, set, options);
    EXPECT_EQ(all.weight, one.weight) << batches;
    EXPECT_EQ(all.bytes, one.bytes) << batches;
    EXPECT_NEAR(all.loss_sum, one.loss_sum, 1e-6 * one.loss_sum) << batches;
    const int64_t whole = batches > 0 ? batches : (set.samples_per_epoch() + 1) / 2;
    EXPECT_EQ(turns, (whole + world.size() - 1) / world.size()) << batches;
  }
  SetOptions stopped{.rows = 1};
  int64_t turns = 0;
  stopped.stop = [&turns] { return ++turns > 1; };
  EXPECT_EQ(score_set(learner, set, stopped).weight, static_cast<double>(16 * world.size()));
}

TEST_F(Evaluate, RanksTakeTheBatchesOfOneProcessInTurns) {
  std::string text;
  for (int i = 0; i < 90; ++i) text += std::to_string(i * i) + ' ';
  testing::put_file(folder_ / "squares.txt", text);
  const auto layout = [&](int64_t expert, ShardKind shard) {
    Recipe recipe = nano(folder_ / "squares.txt");
    recipe.parallel.expert = expert;
    recipe.parallel.shard = shard;
    return recipe;
  };
  const Recipe two = layout(2, ShardKind::kZero1), three = layout(1, ShardKind::kFull),
               four = layout(4, ShardKind::kFull);
  testing::in_ranks(2, [&](World& world) { expect_one_process(world, two, *learner_); });
  testing::in_ranks(3, [&](World& world) { expect_one_process(world, three, *learner_); });
  testing::in_ranks(4, [&](World& world) { expect_one_process(world, four, *learner_); });
}

// Each replica with a seed of its own, as if its logits were others, and a quarter of the vocabulary
// that ends a text: alone they would end apart, and with experts over both wait for each other.
TEST_F(Evaluate, ReplicasGoOnWithOneRanksTokensThoughTheyDrawOthers) {
  for (const int64_t expert : {1, 2}) {
    Recipe recipe = recipe_;
    recipe.parallel.expert = expert;
    recipe.parallel.shard = ShardKind::kNone;
    std::vector<std::vector<TokenList>> made(2);
    testing::in_threads(2, [&](World& world) {
      const ResolvedRun run = resolve(recipe, world);
      const auto setup =
          std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), run);
      Learner learner(run, c10::Device(c10::kCPU), none_, setup);
      const auto rank = static_cast<size_t>(world.rank());
      GenerateConfig how{.sample = {.temperature = 1, .seed = rank}, .max_tokens = 40};
      for (int64_t id = 0; id < 64; ++id) how.stop.push_back(id);
      made[rank] = generator_of(learner).generate({{1, 2, 3}, {4, 5}}, how);
    });
    ASSERT_EQ(made[0], made[1]) << expert;
    EXPECT_GT(made[0].at(0).size() + made[0].at(1).size(), 0) << expert;
  }
}

// Token by token, from the logits of the model.
double by_logits(Learner& learner, const std::string& query, const std::string& choice) {
  double sum = 0;
  std::vector<int64_t> ids;
  for (const char c : query) ids.push_back(static_cast<unsigned char>(c));
  for (const char c : choice) {
    Model& model = learner.model();
    const at::Tensor h = hidden_states(model, {.ids_BS = at::tensor(ids, at::kLong).view({1, -1})});
    const at::Tensor logits = model.logits(h.select(1, h.size(1) - 1)).flatten();
    const auto id = static_cast<int64_t>(static_cast<unsigned char>(c));
    sum += at::log_softmax(logits, 0)[id].item<double>();
    ids.push_back(id);
  }
  return sum;
}

TEST_F(Evaluate, AChoicesLikelihoodIsTheSumOfItsTokens) {
  const auto tokenizer = open_tokenizer("bytes");
  const Question q{.query = "The quick", .choices = {"brown fox", " dog", "x"}, .gold = 1};
  const auto sums = choice_likelihoods(*learner_, *tokenizer, q, 64);
  ASSERT_EQ(sums.size(), 3U);
  EXPECT_NEAR(sums[0], by_logits(*learner_, q.query, " brown fox"), 1e-4);
  EXPECT_NEAR(sums[1], by_logits(*learner_, q.query, " dog"), 1e-4);
  EXPECT_NEAR(sums[2], by_logits(*learner_, q.query, " x"), 1e-4);
  // Of a text longer than the window its end counts.
  const auto cut = choice_likelihoods(*learner_, *tokenizer, q, 12);
  EXPECT_NEAR(cut[0], by_logits(*learner_, "ick", " brown fox"), 1e-4);
}

TEST_F(Evaluate, LongAnswersAreNotAtALossWhereBytesCount) {
  const auto tokenizer = open_tokenizer("bytes");
  // An untrained model gives each byte about the same: the sum favors the shortest.
  const std::vector<Question> questions = {
      {.query = "a", .choices = {"b", "cccccccccccc"}, .gold = 0},
      {.query = "a", .choices = {"cccccccccccc", "b"}, .gold = 0}};
  const ChoiceScore score = score_questions(*learner_, *tokenizer, questions, 64);
  EXPECT_EQ(score.questions, 2);
  EXPECT_EQ(score.right, 1);
  EXPECT_EQ(score.accuracy(), 0.5);
  EXPECT_EQ(score.right_normed, 1);
}

TEST_F(Evaluate, QuestionsAreReadInBothSpellingsAndBadLinesAreTold) {
  testing::put_file(folder_ / "q.jsonl",
                    "{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 1, \"id\": 7}\n\n"
                    "{\"ctx\": \"d\", \"endings\": [\"e\", \"f\", \"g\"], \"label\": \"2\"}\n");
  const auto questions = read_questions(folder_ / "q.jsonl");
  ASSERT_EQ(questions.size(), 2U);
  EXPECT_EQ(questions[0].gold, 1);
  EXPECT_EQ(questions[1].choices[2], "g");
  EXPECT_EQ(questions[1].gold, 2);
  const auto refusal = [&](const std::string& text) -> std::string {
    testing::put_file(folder_ / "bad.jsonl", text);
    try {
      read_questions(folder_ / "bad.jsonl");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kBadDocument);
      return error.what();
    }
    return "accepted";
  };
  const auto has = [&](const std::string& text, const std::string& part) {
    const std::string message = refusal(text);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has("{\"query\": \"a\", \"choices\": [\"b\"], \"gold\": 0}\n",
      "bad.jsonl:1: E3106 needs `choices`");
  has("\n{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 2}\n",
      "bad.jsonl:2: E3106 needs `gold`");
  has("{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": 0}\n",
      "bad.jsonl:1: E3106 needs `query`");
  has("{\"query\": \"a\", \"ctx\": \"d\", \"choices\": [\"b\", \"c\"], \"gold\": 0}\n",
      "has both query and ctx");
  has("{\"query\": \"a\", \"choices\": [\"b\", \"c\"], \"gold\": \"b\"}\n", "from 0; it is \"b\"");
  has("{\"query\": \"a\", \"choices\": [\"b\", \"\"], \"gold\": 0}\n", "empty choice");
  has("{\"query\"\n", "bad.jsonl:1");
  has("", "has no questions");
}

}  // namespace
}  // namespace troupe
