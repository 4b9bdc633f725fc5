#include "troupe/data/tokens/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>
#include <sstream>

#include "troupe/core/config/config.h"
#include "troupe/data/files/memory_source_test.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/data/tokenizer/train_bpe.h"
#include "troupe/data/tokens/token_writer.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

using testing::has;
using testing::Lines;
using testing::put_file;
using testing::refusal_code;
using testing::TemporaryFolder;

using Ids = std::vector<int32_t>;

DataConfig config_of(const std::string& yaml) {
  DataConfig config;
  read_config(parse_yaml(yaml, "r.yaml"), config);
  return config;
}

void put_tokens(const std::string& prefix, const std::vector<Ids>& sequences) {
  Fs fs;
  TokenWriter writer(fs, {.prefix = prefix, .type = TokenType::kI32, .replace = true});
  for (const Ids& ids : sequences) {
    writer.add_tokens(ids);
    writer.end_sequence();
    writer.end_document();
  }
  writer.publish();
}

// A dataset of one source in memory with the given pieces as its only sample.
class OnePiece : public Sampler {
 public:
  explicit OnePiece(std::vector<TokenPiece> pieces) : pieces_(std::move(pieces)) {}
  int64_t samples_per_epoch() const override { return 1; }
  std::vector<TokenPiece> pieces(int64_t) const override { return pieces_; }

 private:
  std::vector<TokenPiece> pieces_;
};
class Alone : public SourceOrder {
 public:
  int64_t size() const override { return kEndless; }
  std::pair<int, int64_t> at(int64_t n) const override { return {0, n}; }
  int64_t count(int, int64_t n) const override { return n; }
};

TokenBatch one_sample(const std::vector<Ids>& sequences, std::vector<TokenPiece> pieces,
                      const SampleRules& rules, int64_t sample = 0) {
  std::vector<MixedSource> sources;
  sources.push_back({.name = "memory",
                     .tokens = std::make_shared<MemorySource>(sequences),
                     .sampler = std::make_unique<OnePiece>(std::move(pieces))});
  return Dataset(std::move(sources), std::make_unique<Alone>(), rules).batch(sample, 1);
}

TEST(Dataset, WithoutDocumentsASampleIsOne) {
  const TokenBatch batch = one_sample({{1, 2, 3}, {4, 5}}, {{0, 5}}, {.sequence = 4, .vocab = 10});
  EXPECT_EQ(batch.ids, (Ids{1, 2, 3, 4, 5}));
  EXPECT_EQ(batch.documents, (Ids{0, 0, 0, 0}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 3}));
  EXPECT_EQ(batch.weights, (std::vector<float>{1, 1, 1, 1}));
}

TEST(Dataset, DocumentsEndWhereSequencesDo) {
  const TokenBatch batch =
      one_sample({{1, 2, 3}, {}, {4, 5}, {6, 7}}, {{1, 6}},
                 {.sequence = 5, .vocab = 10, .documents = Documents::kSequences});
  EXPECT_EQ(batch.ids, (Ids{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(batch.documents, (Ids{0, 0, 1, 1, 2}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 0, 1, 0}));
  EXPECT_EQ(batch.weights, (std::vector<float>{1, 0, 1, 0, 1}));  // No label of another document.
}

TEST(Dataset, DocumentsEndBehindTheEndOfDocumentId) {
  const SampleRules rules{.sequence = 5, .vocab = 10, .eod = 9, .documents = Documents::kEod};
  const TokenBatch batch = one_sample({{1, 9, 2, 3, 9, 4}}, {{0, 6}}, rules);
  EXPECT_EQ(batch.documents, (Ids{0, 0, 1, 1, 1}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 0, 1, 2}));
  EXPECT_EQ(batch.weights, (std::vector<float>{1, 0, 1, 1, 0}));
}

TEST(Dataset, EodMaskLossMasksWhereTheInputEnds) {
  const SampleRules rules{.sequence = 4, .vocab = 10, .eod = 9, .eod_mask_loss = true};
  EXPECT_EQ(one_sample({{1, 9, 2, 3, 9}}, {{0, 5}}, rules).weights,
            (std::vector<float>{1, 0, 1, 1}));
}

TEST(Dataset, PaddingCountsNothing) {
  const SampleRules rules{.sequence = 6, .vocab = 10, .documents = Documents::kSequences};
  const TokenBatch batch = one_sample({{1, 2, 3}, {4, 5}}, {{0, 3}, {3, 2}}, rules);
  EXPECT_EQ(batch.ids, (Ids{1, 2, 3, 4, 5, 0, 0}));
  EXPECT_EQ(batch.documents, (Ids{0, 0, 0, 1, 1, -1}));
  EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 0, 1, 0}));
  EXPECT_EQ(batch.weights, (std::vector<float>{1, 1, 0, 1, 0, 0}));
}

TEST(Dataset, F69_ABatchMayHaveNoLossAtAll) {
  const SampleRules rules{.sequence = 3, .vocab = 10, .eod = 9, .eod_mask_loss = true};
  EXPECT_EQ(one_sample({{9, 9, 9, 9}}, {{0, 4}}, rules).weights, (std::vector<float>{0, 0, 0}));
}

TEST(Dataset, F57_ABatchNamesTheTokenThatTheVocabularyLacks) {
  const std::string what = refusal_code(Code::kBadToken, [] {
    one_sample({{1, 2}, {3, 300}}, {{0, 4}}, {.sequence = 3, .vocab = 256});
  });
  EXPECT_PRED2(has, what, "memory: E3102 sequence 1 has at its position 1 the token id 300");
}

// Every row is a rearrangement by two cuts; with rate 1 every document has its three marks.
TEST(Dataset, FillInTheMiddleKeepsTheTokens) {
  const FimConfig fim{.rate = 1, .spm_rate = 0.5, .prefix = 97, .middle = 98, .suffix = 99};
  const SampleRules rules{.sequence = 12, .vocab = 100, .fim = fim, .seed = 3};
  std::set<Ids> seen;
  int suffix_first = 0;
  for (int64_t n = 0; n < 300; ++n) {
    Ids ids = one_sample({{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}, {{0, 10}}, rules, n).ids;
    seen.insert(ids);
    ASSERT_EQ(ids[0], 97);
    const auto suffix = std::ranges::find(ids, 99), middle = std::ranges::find(ids, 98);
    ASSERT_LT(suffix, middle);
    const bool spm = suffix == ids.begin() + 1;
    suffix_first += spm;
    const Ids s(suffix + 1, middle), m(middle + 1, ids.end());
    Ids text(ids.begin() + 1, suffix);  // PSM: p, m, s
    if (text.empty()) {
      text = m;  // SPM: p m, s; the same where p is empty
    } else {
      text.insert(text.end(), m.begin(), m.end());
    }
    text.insert(text.end(), s.begin(), s.end());
    ASSERT_EQ(text, (Ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  }
  EXPECT_GT(seen.size(), 50u);  // of 66: suffix first shows one cut alone
  EXPECT_GT(suffix_first, 100);
  EXPECT_LT(suffix_first, 220);
}

TEST(Dataset, FillInTheMiddleLeavesAShareAlone) {
  const FimConfig fim{.rate = 0.25, .spm_rate = 0, .prefix = 97, .middle = 98, .suffix = 99};
  const SampleRules rules{.sequence = 4, .vocab = 100, .fim = fim, .seed = 3};
  int plain = 0;
  for (int64_t n = 0; n < 400; ++n) {
    const TokenBatch batch = one_sample({{1, 2, 3, 4, 5}}, {{0, 5}}, rules, n);
    EXPECT_EQ(batch.ids.size(), 5u);  // What does not fit falls off.
    plain += batch.ids == Ids{1, 2, 3, 4, 5};
  }
  EXPECT_NEAR(plain, 300, 40);
}

struct OfFiles : ::testing::Test {
  TemporaryFolder folder;
  std::string a = folder / "a", b = folder / "b";
  DataNeeds needs{.vocab = 100000, .seed = 7};

  void SetUp() override {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < 200; ++i) lengths.push_back(i * 7919 % 31);
    put_tokens(a, counted(lengths));
    put_tokens(b, std::vector<Ids>{Ids(500, 99999)});
  }
  DataConfig mixed(const std::string& more = "") const {
    return config_of("train: [{path: " + a + ", weight: 3}, {path: " + b + "}]\nsequence: 16\n" +
                     more);
  }
  std::string refused(Code code, const DataConfig& config) const {
    return refusal_code(code, [&] { build(config, needs); });
  }
};

TEST_F(OfFiles, ASampleDoesNotDependOnHowItIsAskedFor) {
  const Data data = build(mixed("documents: sequences"), needs);
  const TokenBatch whole = data.train->batch(1000, 24);
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    const Data again = build(mixed("documents: sequences"), needs);  // as after a restart
    Ids ids;
    std::vector<float> weights;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const TokenBatch part = again.train->batch(1000 + rank * 24 / ranks, 24 / ranks);
      ids.insert(ids.end(), part.ids.begin(), part.ids.end());
      weights.insert(weights.end(), part.weights.begin(), part.weights.end());
    }
    EXPECT_EQ(ids, whole.ids) << ranks;
    EXPECT_EQ(weights, whole.weights) << ranks;
  }
}

TEST_F(OfFiles, SourcesHaveTheirShareAndAreCounted) {
  const Data data = build(mixed(), needs);
  const TokenBatch batch = data.train->batch(0, 400);
  const std::vector<SourceUse> uses = data.train->uses(400);
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_EQ(uses[0].name, a);
  EXPECT_EQ(uses[0].samples, std::ranges::count(batch.sources, 0));
  EXPECT_NEAR(static_cast<double>(uses[0].samples), 300, 3);
  EXPECT_EQ(uses[1].samples_per_epoch, 31);
  EXPECT_GT(uses[1].epochs(), 3);
  for (int64_t i = 0; i < batch.B; ++i) {
    EXPECT_EQ(batch.row(i)[0] == 99999, batch.sources[static_cast<size_t>(i)] == 1);
  }
}

TEST_F(OfFiles, AnotherSeedIsAnotherOrder) {
  const TokenBatch one = build(mixed(), needs).train->batch(0, 50);
  EXPECT_EQ(build(mixed("seed: 7"), needs).train->batch(0, 50).ids, one.ids);
  EXPECT_NE(build(mixed("seed: 8"), needs).train->batch(0, 50).ids, one.ids);
}

TEST_F(OfFiles, F62_ASourceThatIsUsedUpIsAnErrorOrAnotherEpoch) {
  DataConfig config = mixed();
  std::get<MegatronFiles>(config.train[1]).share.max_epochs = 2;
  const Data data = build(config, needs);
  data.train->require(240);
  const std::string what = refusal_code(Code::kSourceUsedUp, [&] { data.train->require(260); });
  EXPECT_PRED2(has, what, b + ": E3105 has 31 samples and max_epochs 2 allows 62");
  EXPECT_NO_THROW(data.train->batch(0, 240));
  refusal_code(Code::kSourceUsedUp, [&] { data.train->batch(240, 20); });
  needs.samples = 260;  // The length of the run is known: the error comes before it starts.
  EXPECT_PRED2(has, refused(Code::kSourceUsedUp, config), "max_epochs 2");
}

TEST_F(OfFiles, StagesFollowEachOther) {
  const DataConfig config = config_of(
      "stages:\n"
      "- {until: 1600, train: [{path: " +
      a +
      "}]}\n"
      "- {until: 3200, train: [{path: " +
      b +
      "}]}\n"
      "- {train: [{path: " +
      a + "}, {path: " + b +
      "}]}\n"
      "sequence: 16\n");
  const Data data = build(config, needs);
  const TokenBatch batch = data.train->batch(0, 400);
  const auto count = [&](int source, int64_t begin, int64_t end) {
    return std::count(batch.sources.begin() + begin, batch.sources.begin() + end, source);
  };
  EXPECT_EQ(count(0, 0, 100), 100);
  EXPECT_EQ(count(1, 100, 200), 100);
  EXPECT_NEAR(static_cast<double>(count(0, 200, 400)), 100, 2);
  EXPECT_EQ(data.train->uses(400)[0].samples, count(0, 0, 400));
  // In the third stage source a goes on where the first left it.
  const Data alone = build(config_of("train: [{path: " + a + "}]\nsequence: 16"), needs);
  const TokenBatch plain = alone.train->batch(0, 200);
  int64_t next = 0;
  for (int64_t i = 0; i < 400; ++i) {
    if (batch.sources[static_cast<size_t>(i)] != 0) continue;
    EXPECT_TRUE(std::ranges::equal(batch.row(i), plain.row(next++)));
  }
}

TEST_F(OfFiles, ASplitCutsEachFile) {
  const Data data =
      build(config_of("train: [{path: " + a + "}]\nsplit: '8,1,1'\nsequence: 16"), needs);
  ASSERT_EQ(data.valid.size(), 1u);
  ASSERT_NE(data.test, nullptr);
  const auto tokens = [](const Dataset& set) { return set.uses(0)[0].tokens; };
  EXPECT_EQ(tokens(*data.train) + tokens(*data.valid[0].second) + tokens(*data.test), 3010);
  int32_t most = 0;
  const TokenBatch all = data.train->batch(0, data.train->samples_per_epoch());
  most = *std::ranges::max_element(all.ids);
  EXPECT_LT(most, tokens(*data.train));
  EXPECT_EQ(data.valid[0].second->batch(0, 1).ids[0], tokens(*data.train));
}

TEST_F(OfFiles, EvaluationReadsAllOnceInOrder) {
  const Data data = build(config_of("valid: [{path: " + b + "}]\nsequence: 16"), needs);
  EXPECT_EQ(data.train, nullptr);
  const Dataset& valid = *data.valid[0].second;
  EXPECT_EQ(valid.size(), 32);
  const TokenBatch batch = valid.batch(0, 32);
  EXPECT_EQ(std::accumulate(batch.weights.begin(), batch.weights.end(), 0.0f), 499);
  refusal_code(Code::kSourceUsedUp, [&] { valid.batch(32, 1); });
}

TEST_F(OfFiles, BestFitKeepsDocumentsWhole) {
  const Data data = build(mixed("packing: best_fit\ndocuments: sequences"), needs);
  const TokenBatch batch = data.train->batch(0, 100);
  EXPECT_GT(std::ranges::count(batch.documents, 1), 0);
  for (int64_t i = 0; i < 100; ++i) {
    const auto row = batch.row(i);
    for (int64_t s = 0; s < 16; ++s) {
      const auto at = static_cast<size_t>(i * 16 + s);
      const bool is_next = row[static_cast<size_t>(s) + 1] == row[static_cast<size_t>(s)] + 1;
      EXPECT_TRUE(is_next || batch.weights[at] == 0 || row[0] == 99999);
    }
  }
}

TEST_F(OfFiles, MegatronsOrderIsMegatrons) {
  needs.seed = 1234;
  needs.samples = 17;
  const std::string c = folder / "c";
  put_tokens(c, {{10, 11, 12, 13, 14, 15, 16},
                 {20, 21, 22},
                 {30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41},
                 {40},
                 {50, 51, 52, 53, 54, 55, 56, 57, 58}});
  const Data data =
      build(config_of("train: [{path: " + c + "}]\norder: megatron\nsequence: 4"), needs);
  EXPECT_EQ(data.train->batch(0, 3).ids,
            (Ids{54, 55, 56, 57, 58, 50, 51, 52, 53, 54, 38, 39, 40, 41, 30}));
  EXPECT_EQ(data.train->size(), 23);
}

TEST_F(OfFiles, MegatronsBlendIsMegatrons) {
  needs.samples = 50;
  const Data data = build(mixed("order: megatron"), needs);
  EXPECT_EQ(data.train->size(), 51);  // ceil(37.5) + ceil(12.5)
  const TokenBatch batch = data.train->batch(0, 8);
  EXPECT_EQ(batch.sources, (Ids{0, 1, 0, 0, 0, 1, 0, 0}));
  EXPECT_EQ(data.train->uses(8)[1].samples, 2);
}

TEST_F(OfFiles, F58_AGlobalBatchNeedsAnEpoch) {
  needs.batch = 1000;
  EXPECT_PRED2(has, refused(Code::kTooFewTokens, mixed()),
               "have 219 samples of 16 tokens; a global batch needs 1000");
}

TEST_F(OfFiles, F57_ASampleOfEachFileIsScannedAtTheStart) {
  needs.vocab = 99999;
  EXPECT_PRED2(has, refused(Code::kBadToken, mixed()), b + ".bin: E3102 sequence 0");
}

TEST_F(OfFiles, F59_AFileThatChangesIsNoticedByTheBatch) {
  const Data data = build(mixed(), needs);
  data.train->batch(0, 8);
  std::filesystem::resize_file(b + ".bin", 8);
  const std::string what = refusal_code(Code::kDataChanged, [&] { data.train->batch(8, 8); });
  EXPECT_PRED2(has, what, b + ".bin: E3104 has 8 bytes now and had 2000");
}

TEST_F(OfFiles, F61_SharesThatMeanNothingAreRefusedTogether) {
  DataConfig config = mixed();
  std::get<MegatronFiles>(config.train[0]).share.weight = 0;
  std::get<MegatronFiles>(config.train[1]).share.weight = -1;
  const std::string what = refused(Code::kBadValue, config);
  EXPECT_PRED2(has, what, "data.train[0].weight: E2005 0 is not a positive number");
  EXPECT_PRED2(has, what, "\ndata.train[1].weight: E2005 -1 is not");
  std::get<MegatronFiles>(config.train[0]).share.weight = NAN;
  EXPECT_PRED2(has, refused(Code::kBadValue, config), "data.train[0].weight: E2005 nan");
  config.train.assign(33000, config.train[1]);
  EXPECT_PRED2(has, refused(Code::kBadValue, config), "data.train: E2005 33000 sources");
}

TEST_F(OfFiles, F162_WeightsWhoseSumIsNoNumberAreRefused) {
  DataConfig config = mixed();
  for (SourceConfig& source : config.train) std::get<MegatronFiles>(source).share.weight = 1e308;
  EXPECT_PRED2(has, refused(Code::kBadValue, config), "data.train: E2005 weights sum to more");
  std::get<MegatronFiles>(config.train[0]).share.weight = 1e-300;
  EXPECT_PRED2(has, refused(Code::kBadValue, config), "data.train[0].weight: E2005 1e-300 is less");
}

TEST_F(OfFiles, F161_AValidationPathThatIsACircleIsSaidByWhoOpensIt) {
  DataConfig config = mixed();
  const std::string loop = b + "-loop";
  std::filesystem::create_symlink(loop, loop);
  config.valid = {MegatronFiles{.path = loop + "/x"}};
  EXPECT_PRED2(has, refused(Code::kUnreadableData, config), loop + "/x.bin: E3001 cannot open");
}

TEST_F(OfFiles, F61_WeightsNeedNotSumToOne) {
  const TokenBatch one = build(mixed(), needs).train->batch(0, 50);
  DataConfig config = mixed();
  std::get<MegatronFiles>(config.train[0]).share.weight = 0.75;
  std::get<MegatronFiles>(config.train[1]).share.weight = 0.25;
  EXPECT_EQ(build(config, needs).train->batch(0, 50).ids, one.ids);
  const auto sink = std::make_shared<Lines>();
  needs.log = Log({sink});
  build(config, needs);
  EXPECT_EQ(sink->text, "");
  build(mixed(), needs);
  EXPECT_EQ(sink->text, "data: weights sum to 4; shares are " + a + " 0.75 " + b + " 0.25\n");
}

TEST_F(OfFiles, F68_TrainingOnTheValidationSetIsAWarning) {
  const auto sink = std::make_shared<Lines>();
  needs.log = Log({sink});
  build(mixed("valid: [{path: " + folder.path() + "/../" +
              std::filesystem::path(folder.path()).filename().string() + "/b}]"),
        needs);
  EXPECT_PRED2(has, sink->text, "is trained on as well");
  sink->text.clear();
  build(mixed(), needs);
  EXPECT_FALSE(has(sink->text, "trained on"));
}

TEST_F(OfFiles, F72_DataOfAnotherTokenizerIsRefused) {
  put_file(a + ".json", "{\"tokenizer\": \"abc\", \"vocab\": 7}");
  needs.tokenizer = "abc";
  build(mixed(), needs);
  needs.tokenizer = "def";
  EXPECT_PRED2(has, refused(Code::kOtherTokenizer, mixed()), "tokenizer abc ; the recipe's is def");
}

TEST_F(OfFiles, F33_AnotherFileHasAnotherFingerprint) {
  const auto one = build(mixed(), needs).train->fingerprint();
  EXPECT_EQ(build(mixed(), needs).train->fingerprint(), one);
  put_tokens(b, std::vector<Ids>{Ids(500, 99998)});
  const auto other = build(mixed(), needs).train->fingerprint();
  EXPECT_EQ(one[0], other[0]);
  EXPECT_NE(one[1], other[1]);
  EXPECT_EQ(one[1].first, "data " + b);
}

TEST_F(OfFiles, F80_WhatExcludesEachOtherIsRefused) {
  const auto refusal = [&](const std::string& more) {
    return refused(Code::kBadValue, mixed(more));
  };
  EXPECT_PRED2(has, refusal("packing: best_fit"), "set data.documents");
  EXPECT_PRED2(has, refusal("packing: best_fit\norder: megatron\ndocuments: sequences"),
               "best_fit needs data.order: ours");
  EXPECT_PRED2(has, refusal("split: '9,1'\nvalid: [{path: x}]"), "data.split");
  EXPECT_PRED2(has, refusal("stages: [{train: [{path: x}]}]"), "data.stages");
  EXPECT_PRED2(has,
               refused(Code::kBadValue, config_of("stages: [{train: [{path: x}]}]\nsplit: '1'")),
               "data.split");
  EXPECT_PRED2(has, refusal("documents: eod"), "need a tokenizer");
  DataConfig short_one = mixed();
  short_one.sequence = 0;
  EXPECT_PRED2(has, refused(Code::kBadValue, short_one), "data.sequence");
  EXPECT_PRED2(has, refusal("fim: {prefix: 1, middle: 1, suffix: 2}"), "not distinct");
  EXPECT_PRED2(has, refusal("fim: {prefix: 1, middle: 2, suffix: 100000}"), "not below");
  EXPECT_PRED2(has, refusal("order: megatron"), "needs the run's length");
}

TEST_F(OfFiles, MoreThanOneFaultIsToldAtOnce) {
  DataConfig config = mixed("packing: best_fit");
  config.sequence = 0;
  const std::string what = refused(Code::kBadValue, config);
  EXPECT_EQ(std::ranges::count(what, '\n'), 1);
}

TEST(Sources, TextIsItsBytes) {
  const TemporaryFolder folder;
  put_file(folder / "t.txt", std::string("a\0\xff", 3));
  const Data data =
      build(config_of("valid: [{kind: text, path: " + (folder / "t.txt") + "}]\nsequence: 2"),
            {.vocab = 256});
  EXPECT_EQ(data.valid[0].second->batch(0, 1).ids, (Ids{97, 0, 255}));
}

TEST(Sources, TextIsEncodedByTheRecipesTokenizer) {
  const TemporaryFolder folder;
  const std::string text = "the cat and the hat and the bat, \xc3\xa9t\xc3\xa9 and the end";
  put_file(folder / "t.txt", text);
  put_file(folder / "tokenizer.json", train_bpe({text}, {.vocab = 270}, serial));
  const std::unique_ptr<Tokenizer> bpe = open_tokenizer(folder / "tokenizer.json");
  const TokenSourcePtr source = TextFile{folder / "t.txt"}.open({.encoder = bpe.get()});
  const Ids theirs = bpe->encode(text);
  ASSERT_LT(theirs.size(), text.size());
  ASSERT_EQ(source->num_tokens(), std::ssize(theirs));
  Ids ours(theirs.size());
  source->read(0, ours);
  EXPECT_EQ(ours, theirs);
  Ids middle(3);
  source->read(4, middle);
  EXPECT_EQ(middle, Ids(theirs.begin() + 4, theirs.begin() + 7));
  EXPECT_NE(source->fingerprint(), TextFile{folder / "t.txt"}.open({})->fingerprint());
}

TEST(Sources, MockDataNeedsNoFile) {
  const TokenSourcePtr mock = MockTokens{}.open({.vocab = 100, .eod = 7});
  EXPECT_EQ(mock->num_tokens(), 204637097);
  Ids ids(300);
  mock->read(3484 - 150, ids);  // around the end of the first document
  EXPECT_EQ(ids[0], 3335 % 100);
  EXPECT_EQ(ids[148], 3483 % 100);
  EXPECT_EQ(ids[149], 7);
  EXPECT_EQ(ids[150], 1);
  Ids parts(300);
  for (int64_t i = 0; i < 300; ++i)
    mock->read(3334 + i, std::span(parts).subspan(static_cast<size_t>(i), 1));
  EXPECT_EQ(parts, ids);
}

TEST(Sources, LlmcFilesNameTheirTypeAndCount) {
  const TemporaryFolder folder;
  const auto file = [](std::vector<int32_t> header, const std::string& tokens) {
    header.resize(256);
    return std::string(reinterpret_cast<const char*>(header.data()), 1024) + tokens;
  };
  const std::string path = folder / "x.bin";
  const auto ids_of = [&](size_t count) {
    Ids ids(count);
    LlmcFile{.path = path}.open({})->read(0, ids);
    return ids;
  };
  put_file(path, file({20240520, 1, 3}, std::string("\1\0\2\0\xff\xff", 6)));
  EXPECT_EQ(ids_of(3), (Ids{1, 2, 65535}));
  put_file(path, file({20240801, 7, 1}, std::string("\1\0\1\0", 4)));
  EXPECT_EQ(ids_of(1), (Ids{65537}));
  const auto refusal = [&](const std::string& bytes) {
    put_file(path, bytes);
    return refusal_code(Code::kBadTokenFile, [&] { LlmcFile{.path = path}.open({}); });
  };
  EXPECT_PRED2(has, refusal("short"), "has 5 bytes; the header has 1024");
  EXPECT_PRED2(has, refusal(file({20240520, 2, 0}, "")), "magic 20240520 and version 2");
  EXPECT_PRED2(has, refusal(file({20240520, 1, 4}, "123456")), "4 tokens of 2 bytes");
  EXPECT_PRED2(has, refusal(file({20240520, 1, -1}, "")), "-1 tokens");
}

TEST(Sources, FlatFilesAreIdsAlone) {
  const TemporaryFolder folder;
  put_file(folder / "x.npy", std::string("\1\0\2\0", 4));
  Ids ids(2);
  FlatFile{.path = folder / "x.npy"}.open({})->read(0, ids);
  EXPECT_EQ(ids, (Ids{1, 2}));
  put_file(folder / "x.npy", "123");
  const std::string what =
      refusal_code(Code::kBadTokenFile, [&] { FlatFile{.path = folder / "x.npy"}.open({}); });
  EXPECT_PRED2(has, what, "no multiple of the 2");
}

TEST(DataConfigTest, ReadsBackWhatItPrints) {
  const DataConfig config = config_of(
      "train: [{path: x, weight: 2}, {kind: mock}]\nvalid: [{kind: text, path: y, max_epochs: 3}]\n"
      "fim: {rate: 0.1, prefix: 1, middle: 2, suffix: 3}\norder: megatron\n");
  std::ostringstream printed;
  print_config(printed, config);
  EXPECT_TRUE(same(config_of(printed.str()), config));
}

}  // namespace
}  // namespace troupe
