// Every way to factor ranks, and to share state over them: a Learner on ranks that are threads
// beside one process, in f64: every factoring of 4 ranks, of 8 a list in which each pair of values
// of two axes occurs, each with one of the two means of the loss. All of 8 ranks, some 500, take
// minutes (docs/develop/BUILD.md):
//
//   factorings_test --gtest_also_run_disabled_tests --gtest_filter='DISABLED_AllOf8*'
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "troupe/train/layout/layout_run_test.h"

namespace troupe {
namespace {

constexpr int64_t kSteps = 2;
// Eight units, for eight stages; every width divides by 8.
constexpr const char* kModel =
    "model: {layers: 6, width: 32, heads: 8, kv_heads: 2, vocab: 200, vocab_pad: 512, "
    "max_positions: 64, ffn: 64, first_dense: 1, qk_norm: head, tie_embeddings: true, "
    "mtp: {depth: 1}, moe: {experts: 8, top_k: 2, hidden: 16, shared: {experts: 1, hidden: 16}, "
    "router: {kind: topk_softmax, jitter: 0.01, limit: {groups: 4, keep: 2}, balance: {aux_loss: "
    "0.05, seq_loss: 0.05, global_loss: 0.05, global_fractions: previous, batched_loss: 0.05, "
    "batched_scope: group, device_loss: 0.05, communication_loss: 0.05, z_loss: 0.001}}}, dropout: "
    "0.1}\n"
    "data: {sequence: 32}\n"
    "train: {global_batch: 10, micro_batch: 2, steps: 10, clip: 0.5, precision: fp64, optimizer: "
    "{kind: adamw, lr: 0.003, eps: 1e-6}, schedule: {warmup: 0}}\n"
    "run: {device: cpu}\n"
    "checkpoint: {dir: run}\n";

enum Axis : uint8_t { kTp, kCp, kPp, kDp, kEtp, kEp, kEdp, kShare, kAxes };
enum Share : uint8_t { kDdp, kZero1, kFsdp, kHsdp };
constexpr std::array kAxisNames = {"tp", "cp", "pp", "dp", "etp", "ep", "edp"};
constexpr std::array kShareNames = {"ddp", "zero1", "fsdp", "hsdp"};
// HSDP: half of the ranks with the same dense parameters hold one copy.
constexpr std::array kShareTexts = {"none", "zero1", "full", "full"};

using Row = std::array<int, kAxes>;

// The ordered ways to write n as a product of three.
std::vector<std::array<int, 3>> products(int n) {
  std::vector<std::array<int, 3>> out;
  for (int a = 1; a <= n; ++a) {
    for (int b = 1; n % a == 0 && b <= n / a; ++b) {
      if (n / a % b == 0) out.push_back({a, b, n / a / b});
    }
  }
  return out;
}

// tp cp dp = etp ep edp = a stage's ranks, by every way to share state that there is then.
std::vector<Row> all_rows(int ranks) {
  std::vector<Row> out;
  for (int pp = 1; pp <= ranks; ++pp) {
    if (ranks % pp != 0) continue;
    for (const auto& [tp, cp, dp] : products(ranks / pp)) {
      for (const auto& [etp, ep, edp] : products(ranks / pp)) {
        for (const int share : {kDdp, kZero1, kFsdp, kHsdp}) {
          if (share == kHsdp && cp * dp % 4 != 0) continue;
          out.push_back({tp, cp, pp, dp, etp, ep, edp, share});
        }
      }
    }
  }
  return out;
}

using Pair = std::array<int, 4>;  // axis, its value, another axis, its value
std::set<Pair> pairs_of(const Row& row) {
  std::set<Pair> out;
  for (int a = 0; a < kAxes; ++a) {
    for (int b = a + 1; b < kAxes; ++b) out.insert({a, row[a], b, row[b]});
  }
  return out;
}

// Picks rows one after the other, the one with the most pairs that no row before has.
class Cover {
 public:
  void take_best(const std::vector<Row>& of) {
    const auto news = [&](const Row& row) {
      return std::ranges::count_if(pairs_of(row),
                                   [&](const Pair& p) { return !seen_.contains(p); });
    };
    rows.push_back(*std::ranges::max_element(of, {}, news));
    seen_.merge(pairs_of(rows.back()));
  }
  // Until each pair that occurs in `all` does in `rows`.
  void complete(const std::vector<Row>& all) {
    std::set<Pair> wanted;
    for (const Row& row : all) wanted.merge(pairs_of(row));
    while (!std::ranges::includes(seen_, wanted)) take_best(all);
  }
  std::vector<Row> rows = {};

 private:
  std::set<Pair> seen_;
};

// Every factoring once, and what is then missing of the pairs.
std::vector<Row> every_factoring(int ranks) {
  const std::vector<Row> all = all_rows(ranks);
  Cover cover;
  for (auto from = all.begin(); from != all.end();) {
    const auto to = std::find_if(from, all.end(), [&](const Row& row) {
      return !std::equal(row.begin(), row.begin() + kShare, from->begin());
    });
    cover.take_best({from, to});
    from = to;
  }
  cover.complete(all);
  return cover.rows;
}

std::vector<Row> covering(int ranks) {
  Cover cover;
  cover.complete(all_rows(ranks));
  return cover.rows;
}

// What a row does not say, dealt by its number: the pipeline's order, cut tables, what context
// ranks exchange, documents, the loss's mean.
struct Case {
  Row row;
  size_t number;
  bool packed() const { return number % 3 == 0; }
  LossMean mean() const {
    return number / 2 % 2 == 0 ? LossMean::kTokens : LossMean::kMicrobatches;
  }
  std::string schedule() const {
    if (row[kPp] == 1) return "";
    if (row[kPp] == 8) return std::array{"1f1b", "gpipe", "zb1p"}[number % 3];
    return std::array{"1f1b", "interleaved", "zb1p", "zbv", "dualpipev", "gpipe"}[number % 6];
  }
  std::string parallel() const {
    std::string out =
        "parallel: {tensor: " + std::to_string(row[kTp]) +
        ", context: " + std::to_string(row[kCp]) + ", pipeline: " + std::to_string(row[kPp]) +
        ", data: " + std::to_string(row[kDp]) + ", expert_tensor: " + std::to_string(row[kEtp]) +
        ", expert: " + std::to_string(row[kEp]) + ", shard: ";
    out += kShareTexts[static_cast<size_t>(row[kShare])];
    if (row[kShare] == kHsdp) out += ", shard_ranks: " + std::to_string(row[kCp] * row[kDp] / 2);
    if (row[kPp] > 1) out += ", schedule: " + schedule();
    if (schedule() == "interleaved") out += ", virtual: 2";
    if (row[kCp] > 1 && number % 2 == 1) out += ", context_method: ring";
    if (row[kTp] > 1 && number % 2 == 0) out += ", split_vocab: on, split_shared: on";
    return out + "}\n";
  }
  std::string name() const {
    std::string out;
    for (size_t axis = 0; axis < kAxisNames.size(); ++axis) {
      if (row[axis] > 1) out += std::string(kAxisNames[axis]) + std::to_string(row[axis]) + '_';
    }
    out += kShareNames[static_cast<size_t>(row[kShare])];
    return row[kPp] > 1 ? out + '_' + schedule() : out;
  }
};

std::vector<Case> cases(const std::vector<Row>& rows) {
  std::vector<Case> out;
  for (const Row& row : rows) out.push_back({row, out.size()});
  return out;
}

class Factorings : public ::testing::TestWithParam<Case> {};

TEST_P(Factorings, AreOneProcess) {
  const Case& c = GetParam();
  const Text text{.sequence = 32, .packed = c.packed()};
  at::set_num_threads(1);
  const std::string mean = "train: {loss_mean: " + to_text(c.mean()) + "}\n";
  static std::map<std::string, Figures> alone;
  const auto [found, is_new] = alone.try_emplace(mean + (c.packed() ? "packed" : "whole"));
  if (is_new) {
    found->second = figures_of(resolve_alone(recipe_of(mean, kModel)), text,
                               std::make_shared<ParallelSetup>(), kSteps, nullptr);
  }
  const int ranks = c.row[kTp] * c.row[kCp] * c.row[kPp] * c.row[kDp];
  expect_one_process(recipe_of(mean + c.parallel(), kModel), text, ranks, kSteps, found->second);
}

std::string name_of(const ::testing::TestParamInfo<Case>& given) {
  return std::to_string(given.index) + '_' + given.param.name();
}

INSTANTIATE_TEST_SUITE_P(AllOf4, Factorings, ::testing::ValuesIn(cases(every_factoring(4))),
                         name_of);
INSTANTIATE_TEST_SUITE_P(PairsOf8, Factorings, ::testing::ValuesIn(cases(covering(8))), name_of);
INSTANTIATE_TEST_SUITE_P(DISABLED_AllOf8, Factorings, ::testing::ValuesIn(cases(all_rows(8))),
                         name_of);

TEST(FactoringsList, HasEveryFactoring) {
  const auto factorings = [](const std::vector<Row>& rows) {
    std::set<Row> out;
    for (Row row : rows) row[kShare] = 0, out.insert(row);
    return out.size();
  };
  EXPECT_EQ(factorings(every_factoring(4)), 46);
  EXPECT_EQ(factorings(all_rows(8)), 146);
}

}  // namespace
}  // namespace troupe
