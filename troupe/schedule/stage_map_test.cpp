#include "troupe/schedule/stage_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <limits>
#include <random>

#include "troupe/core/check.h"

namespace troupe {
namespace {

using Faults = std::vector<std::string>;

TEST(StageMap, ReadsMegatronsNotation) {
  const PipelineShape shape{.layers = 61, .mtp = 0, .ranks = 16};
  const StageMapText read = read_stage_map("Et*3|(tt|)*29|L", shape);
  EXPECT_EQ(read.faults, Faults{});
  ASSERT_EQ(read.map.sizes.size(), 32U);
  EXPECT_EQ(read.map.sizes[0], 4);
  for (size_t s = 1; s < 30; ++s) EXPECT_EQ(read.map.sizes[s], 2);
  EXPECT_EQ(read.map.sizes[30], 0);
  EXPECT_EQ(read.map.sizes[31], 1);
  const PipelineShape deep{.layers = 61, .mtp = 1, .ranks = 16};
  EXPECT_EQ(read_stage_map(" E t*3 | (t t |)*29 , | m L", deep).faults, Faults{});
  const StageMapText alone = read_stage_map("Et*3|(tt|)*29,m|L", deep);
  EXPECT_EQ(alone.faults, Faults{});
  EXPECT_EQ(alone.map.sizes[30], 1);
  EXPECT_EQ(alone.map.sizes[31], 1);
}

TEST(StageMap, PrintsTheShortestText) {
  const auto text = [](const StageMap& map, int layers, int mtp) {
    return stage_text(map, {.layers = layers, .mtp = mtp});
  };
  StageMap deepseek{std::vector<int>(32, 2)};
  deepseek.sizes[0] = 4, deepseek.sizes[30] = deepseek.sizes[31] = 1;
  EXPECT_EQ(text(deepseek, 61, 1), "Et*3|(tt|)*29,m|L");
  EXPECT_EQ(text({{4, 4, 4, 4, 4, 3, 3}}, 24, 0), "Et*3|(t*4|)*4,t*3|ttL");
  EXPECT_EQ(text({{1, 1, 1, 1}}, 2, 0), "E|t|t|L");
  EXPECT_EQ(text({{6}}, 4, 0), "Et*4L");
  EXPECT_EQ(text({{2, 0, 0, 0, 0, 1}}, 1, 0), "Et|*5L");
}

Faults faults_of(std::string_view text, const PipelineShape& shape) {
  return read_stage_map(text, shape).faults;
}

TEST(StageMap, TellsWhereATextIsNone) {
  const PipelineShape shape{.layers = 4, .ranks = 2};
  EXPECT_EQ(faults_of("Ett|x ttL#", shape),
            (Faults{"position 5: \"x\" is none of E t m L | * ( )",
                    "position 10: \"#\" is none of E t m L | * ( )"}));
  EXPECT_EQ(faults_of("*3Ett|ttL", shape)[0], "position 1: nothing to repeat stands before \"*\"");
  EXPECT_EQ(faults_of("Et*|ttL", shape)[0], "position 3: a count from 1 to 4096 follows \"*\"");
  EXPECT_EQ(faults_of("Et*0|ttL", shape)[0], "position 3: a count from 1 to 4096 follows \"*\"");
  EXPECT_EQ(faults_of("E(t(t)*2|L", shape)[0], "position 4: a bracket inside a bracket");
  EXPECT_EQ(faults_of("E(tt|L", shape)[0], "position 2: the bracket is not closed");
  EXPECT_EQ(faults_of("Ett)|L", shape)[0], "position 4: \")\" closes no bracket");
  EXPECT_EQ(faults_of("E(tt|)L", shape)[0], "position 2: the bracket has no count, as in (tt|)*3");
  EXPECT_EQ(faults_of("E(t*4000)*2|L", shape)[0], "position 11: more than 4096 letters and bars");
  EXPECT_EQ(faults_of("Ett|tt\x01L", shape)[0], "position 7: this is none of E t m L | * ( )");
}

TEST(StageMap, TellsAllThatDoesNotFitAndTheNearestThatDoes) {
  EXPECT_EQ(faults_of("Et*3|(tt|)*28,t|L", {.layers = 61, .ranks = 16}),
            (Faults{"60 of the 61 layers are in it", "31 stages on 16 ranks",
                    "the nearest that fits is \"Et*3|(tt|)*28,t|t|L\""}));
  EXPECT_EQ(faults_of("tE|ttL|L", {.layers = 4, .mtp = 1, .ranks = 2}),
            (Faults{"position 2: \"E\" behind \"t\"", "position 8: a second \"L\"",
                    "3 of the 4 layers are in it", "0 of the 1 MTP modules are in it",
                    "3 stages on 2 ranks", "the nearest that fits is \"Et|tt|t|mL\""}));
  EXPECT_EQ(faults_of("Ett|mt|tL", {.layers = 4, .mtp = 1, .ranks = 3})[0],
            "position 6: \"t\" behind \"m\"");
  EXPECT_EQ(faults_of("tttt", {.layers = 4}),
            (Faults{"the embedding, \"E\", is missing", "the head, \"L\", is missing",
                    "the nearest that fits is \"Et*4L\""}));
  EXPECT_EQ(faults_of("E|t|L", {.layers = 1, .ranks = 2, .path = StagePath::kVee})[0],
            "3 stages on 2 ranks, and a V has two a rank");
}

// A map of up to 64 stages over up to 16 ranks, with empty stages among them.
struct Drawn {
  PipelineShape shape;
  StageMap map;
};
Drawn draw(std::mt19937_64& random) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Drawn out;
  out.shape = {.layers = below(100), .mtp = below(3), .ranks = 1 + below(16)};
  const bool vee = below(4) == 0;
  if (vee) out.shape.path = StagePath::kVee;
  const int stages = out.shape.ranks * (vee ? 2 : 1 + below(4));
  out.map.sizes.resize(static_cast<size_t>(stages));
  const int most = 1 + below(6);
  int left = out.shape.layers;
  for (int s = 0; s < stages && left > 0; ++s) {
    out.map.sizes[static_cast<size_t>(s)] = std::min(left, below(3) == 0 ? most : below(most + 1));
    left -= out.map.sizes[static_cast<size_t>(s)];
  }
  out.map.sizes.front() += 1;
  out.map.sizes.back() += left + out.shape.mtp + 1;
  return out;
}

TEST(StageMap, TenThousandReadBackAsTheyWerePrinted) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10000; ++i) {
    const Drawn d = draw(random);
    const std::string text = stage_text(d.map, d.shape);
    const StageMapText read = read_stage_map(text, d.shape);
    ASSERT_EQ(read.faults, Faults{}) << text;
    ASSERT_EQ(read.map, d.map) << text;
    ASSERT_EQ(stage_text(read.map, d.shape), text);
  }
}

// For marks, the fewest characters of any text whose brackets hold whole stages, by trying all.
// `begins`: a stage begins here; false inside a bracket, which has no brackets.
size_t fewest(std::string_view marks, bool begins, bool inside = false) {
  size_t out = marks.size();
  for (size_t length = 1; length <= marks.size(); ++length) {
    const std::string_view piece = marks.substr(0, length);
    for (size_t times = 1; times * length <= marks.size(); ++times) {
      if (marks.substr((times - 1) * length, length) != piece) break;
      if (length > 1 && (times == 1 || inside || !begins || piece.back() != '|')) continue;
      const size_t counted = times > 1 ? 1 + std::to_string(times).size() : 0;
      const size_t cost = length == 1 ? 1 + counted : fewest(piece, false, true) + 2 + counted;
      out = std::min(out, cost + fewest(marks.substr(times * length), piece.back() == '|', inside));
    }
  }
  return out;
}

TEST(StageMap, NoTextIsShorter) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 300; ++i) {
    const int layers = static_cast<int>(random() % 7);
    StageMap map{std::vector<int>(1 + random() % 5, 0)};
    map.sizes.front() += 1;
    for (int t = 0; t < layers; ++t) ++map.sizes[random() % map.sizes.size()];
    map.sizes.back() += 1;
    std::string marks;
    for (size_t s = 0, at = 0; s < map.sizes.size(); ++s) {
      if (s > 0) marks += '|';
      for (int k = 0; k < map.sizes[s]; ++k, ++at) {
        marks += at == 0 ? 'E' : at == static_cast<size_t>(layers) + 1 ? 'L' : 't';
      }
    }
    std::string text = stage_text(map, {.layers = layers});
    std::erase(text, ',');
    ASSERT_EQ(text.size(), fewest(marks, true)) << text << " for " << marks;
  }
}

TEST(StageMap, TheNearestFitsWhateverTheTextWas) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 10000; ++i) {
    const Drawn d = draw(random);
    PipelineShape other = draw(random).shape;
    const StageMapText read = read_stage_map(stage_text(d.map, d.shape), other);
    if (read.faults.empty()) continue;
    const std::string& last = read.faults.back();
    const size_t begin = last.find('"') + 1;
    const std::string near = last.substr(begin, last.rfind('"') - begin);
    ASSERT_EQ(faults_of(near, other), Faults{}) << near;
  }
}

TEST(StageMap, CutsAStepIntoStages) {
  const PipelineShape loop{.layers = 4, .mtp = 1, .ranks = 2};
  const StepWork work = with_stages({.chunks = 7}, {{2, 2, 2, 1}}, loop);
  EXPECT_EQ(work.ranks, 2);
  EXPECT_EQ(work.stages, (std::vector<int>{0, 0, 1, 1, 2, 2, 3}));
  EXPECT_EQ(work.stage_ranks, (std::vector<int>{0, 1, 0, 1}));
  EXPECT_EQ(work.depth, 2);
  EXPECT_EQ(with_stages({.chunks = 7}, {{4, 0, 0, 3}}, loop).depth, 4);
  const PipelineShape vee{.layers = 4, .ranks = 2, .path = StagePath::kVee};
  EXPECT_EQ(with_stages({.chunks = 6}, {{2, 2, 1, 1}}, vee).stage_ranks,
            (std::vector<int>{0, 1, 1, 0}));
}

// Every split, by brute force: (slowest, fullest, squares).
std::array<double, 3> best_of(const std::vector<UnitLoad>& units, const std::vector<int>& graphs,
                              size_t stage, size_t from, std::array<double, 3> so_far) {
  if (stage == graphs.size()) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    return from == units.size() ? so_far : std::array{kNever, kNever, kNever};
  }
  std::array<double, 3> out;
  out.fill(std::numeric_limits<double>::infinity());
  double seconds = 0, state = 0, saved = 0;
  for (size_t to = from; to < units.size(); ++to) {
    seconds += units[to].seconds, state += units[to].state, saved += units[to].saved;
    out = std::min(out, best_of(units, graphs, stage + 1, to + 1,
                                {std::max(so_far[0], seconds),
                                 std::max(so_far[1], state + graphs[stage] * saved),
                                 so_far[2] + seconds * seconds}));
  }
  return out;
}

TEST(StageMap, TheChosenSplitIsTheBestOfAll) {
  std::mt19937_64 random(4);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  for (int i = 0; i < 300; ++i) {
    const int layers = 1 + below(7), stages = 1 + below(layers + 2);
    std::vector<UnitLoad> units;
    for (int u = 0; u < layers + 2; ++u) {  // whole numbers: sums are exact
      units.push_back(
          {.seconds = 1.0 + below(4), .state = below(9) + 0.0, .saved = below(5) + 0.0});
    }
    std::vector<int> graphs;
    for (int s = 0; s < stages; ++s) graphs.push_back(stages - s);
    const StageMap map = choose_stages(units, graphs, {.layers = layers});
    std::array<double, 3> is{};
    size_t at = 0;
    for (size_t s = 0; s < map.sizes.size(); ++s) {
      double seconds = 0, bytes = 0;
      for (int k = 0; k < map.sizes[s]; ++k, ++at) {
        seconds += units[at].seconds;
        bytes += units[at].state + graphs[s] * units[at].saved;
      }
      is = {std::max(is[0], seconds), std::max(is[1], bytes), is[2] + seconds * seconds};
    }
    ASSERT_EQ(at, units.size());
    ASSERT_EQ(is, best_of(units, graphs, 0, 0, {}));
  }
}

TEST(StageMap, AStageHasAUnitAtLeast) {
  try {
    choose_stages(std::vector<UnitLoad>(26), std::vector<int>(32, 1), {.layers = 24, .ranks = 32});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              "parallel.pipeline: E2005 32 stages for 24 layers, embedding and head: at most 26");
  }
  const StageMap even = choose_stages(std::vector<UnitLoad>(6, {1, 1, 1}), {3, 2, 1},
                                      {.layers = 3, .mtp = 1, .ranks = 3});
  EXPECT_EQ(even.sizes, (std::vector<int>{2, 2, 2}));
}

TEST(StageMap, F175_ThousandsOfStagesAreAnsweredInTime) {
  const PipelineShape shape{.layers = 61, .mtp = 1, .ranks = 16};
  for (const char* text : {"|*2929,L", "Et*61|*4031L", "(t|)*2000L", "E(|t)*61(||)*1900mL"}) {
    const std::clock_t begin = std::clock();
    const StageMapText read = read_stage_map(text, shape);
    EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 5)
        << text;  // 0.2; it was 20
    ASSERT_FALSE(read.faults.empty()) << text;
    const std::string& last = read.faults.back();
    const size_t from = last.find('"') + 1;
    EXPECT_TRUE(read_stage_map(last.substr(from, last.rfind('"') - from), shape).faults.empty())
        << last;
  }
}

}  // namespace
}  // namespace troupe
