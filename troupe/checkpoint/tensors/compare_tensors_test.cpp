#include "troupe/checkpoint/tensors/compare_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "troupe/checkpoint/files/publish_safetensors_test.h"
#include "troupe/checkpoint/state/save_step.h"
#include "troupe/checkpoint/tensors/describe_tensors.h"
#include "troupe/core/number/bf16.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

using testing::has;
using testing::TemporaryFolder;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::span<const std::byte> bytes(const auto& values) {
  return std::as_bytes(std::span(values));
}

ValueDifference compare(const std::vector<float>& a, const std::vector<float>& b) {
  return compare_values(Element::kF32, bytes(a), Element::kF32, bytes(b), {2, 2});
}

TEST(CompareValues, BitsDecide) {
  EXPECT_EQ(compare({1, 2, 3, kNan}, {1, 2, 3, kNan}).different, 0);
  const ValueDifference d = compare({1, 2, 3, 4}, {1, 2, 3.5, 4.25});
  EXPECT_EQ(d.different, 2);
  EXPECT_EQ(d.max_abs, 0.5);
  EXPECT_EQ(d.first, (Sizes{1, 0}));
  EXPECT_EQ(d.first_a, "3");
  EXPECT_EQ(d.first_b, "3.5");
  const ValueDifference zero = compare({0, 0, 0, 0}, {0, -0.0f, 0, 0});
  EXPECT_EQ(zero.different, 1);
  EXPECT_EQ(zero.max_abs, 0);
}

TEST(CompareValues, OneNanIsAnInfiniteDifference) {
  EXPECT_EQ(compare({1, kNan, 3, 4}, {1, 2, 3, 4}).max_abs, kInfinity);
}

TEST(CompareValues, TypesAreComparedByValue) {
  const std::vector<float> wide = {1, 2, 3, 4};
  std::vector<BF16> narrow;
  for (const float x : wide) narrow.push_back(BF16(x));
  const auto same = compare_values(Element::kF32, bytes(wide), Element::kBF16, bytes(narrow), {4});
  EXPECT_EQ(same.different, 0);
  narrow[3] = BF16(5);
  const auto d = compare_values(Element::kF32, bytes(wide), Element::kBF16, bytes(narrow), {4});
  EXPECT_EQ(d.different, 1);
  EXPECT_EQ(d.max_abs, 1);
  EXPECT_EQ(d.first, (Sizes{3}));
}

TEST(CompareValues, WhatHasNoValuesIsComparedByBytes) {
  const std::vector<uint8_t> a = {0x38, 0x40}, b = {0x38, 0x41};
  const auto d = compare_values(Element::kF8E4M3, bytes(a), Element::kF8E4M3, bytes(b), {2});
  EXPECT_EQ(d.different, 1);
  EXPECT_FALSE(d.max_abs);
  EXPECT_EQ(d.first_b, "0x41");
}

struct Two : ::testing::Test {
  TemporaryFolder folder;
  Fs fs;

  // A run with one step, of tensors w and n, as `rows` shards.
  std::string save(const std::string& run, const std::vector<float>& w, int64_t n,
                   const std::string& scalars = "{}") {
    const auto all = bytes(w);
    std::vector<ShardPiece> pieces;
    for (int64_t row = 0; row < 2; ++row) {
      pieces.push_back({{"model.w", Element::kF32, {{2, 2}, {row, 0}, {1, 2}}},
                        all.subspan(static_cast<size_t>(8 * row), 8)});
    }
    pieces.push_back({{"n", Element::kI64, Box::whole({})}, std::as_bytes(std::span(&n, 1))});
    std::filesystem::create_directory(folder / run);
    CheckpointConfig config;
    config.dir = folder / run;
    const Faults none;
    const CheckpointGroup alone;
    const Log log;
    SaveResult result;
    save_step({fs, none, alone, log}, config, run, {.step = 3, .scalars = scalars}, pieces, result);
    return folder / run;
  }
};

TEST_F(Two, CheckpointsOfSlicesAreComparedWhole) {
  const auto a = open_tensors(save("a", {1, 2, 3, 4}, 7));
  const auto b = open_tensors(save("b", {1, 2, 3, 9}, 7) + "/step-000003");
  const TensorComparison same = compare_tensors(*a, *a);
  EXPECT_EQ(same.equal, 2);
  EXPECT_TRUE(same.differences.empty());
  const TensorComparison c = compare_tensors(*a, *b);
  EXPECT_EQ(c.tensors, 2);
  EXPECT_EQ(c.equal, 1);
  EXPECT_EQ(c.max_abs, 5);
  ASSERT_EQ(c.differences.size(), 1u);
  EXPECT_EQ(c.differences[0].name, "model.w");
  EXPECT_EQ(c.differences[0].values.first, (Sizes{1, 1}));
  EXPECT_EQ(compare_tensors(*a, *b, {"n"}).equal, 1);
}

TEST_F(Two, ANameOnOneSideAndAnotherShapeAreDifferences) {
  const auto a = open_tensors(save("a", {1, 2, 3, 4}, 7));
  publish_safetensors(
      fs, folder / "b.safetensors", layout_safetensors({{"model.w", Element::kF32, {4}}}),
      [](const SafetensorsEntry&, const WriteBytes& write) { write(std::vector<std::byte>(16)); });
  const auto b = open_tensors(folder / "b.safetensors");
  const TensorComparison c = compare_tensors(*a, *b);
  ASSERT_EQ(c.differences.size(), 2u);
  EXPECT_EQ(c.differences[0].what, "is F32 [2, 2] and F32 [4]");
  EXPECT_EQ(c.differences[1].what, "only in A, I64 []");
  EXPECT_EQ(c.equal, 0);
}

TEST_F(Two, ScalarsAreComparedButForHowLongItTook) {
  const auto a = open_tensors(save("a", {1, 2, 3, 4}, 7, R"({"done":{"steps":3},"seconds":1.5})"));
  const auto b = open_tensors(save("b", {1, 2, 3, 4}, 7, R"({"done":{"steps":4},"seconds":2.5})"));
  EXPECT_EQ(changes(a->manifest()->scalars, b->manifest()->scalars, {"seconds"}),
            (std::vector<std::string>{"done.steps: 3 and 4"}));
  EXPECT_EQ(changes(a->manifest()->scalars, b->manifest()->scalars).size(), 2u);
}

TEST_F(Two, ADescriptionCountsTypesAndWhatIsNoNumber) {
  const auto set = open_tensors(save("a", {1, kNan, 3, 4}, 7) + "/step-000003");
  const TensorsSummary s = describe_tensors(*set, /*values=*/true);
  EXPECT_EQ(s.kind, "checkpoint");
  EXPECT_EQ(s.elements, 5);
  EXPECT_EQ(s.bytes, 24);
  EXPECT_EQ(s.unsound, 1);
  ASSERT_EQ(s.types.size(), 2u);
  EXPECT_EQ(s.types[0].dtype, "F32");
  EXPECT_TRUE(set->manifest()->bad);
}

TEST_F(Two, F24_ADescriptionFindsAFlippedBit) {
  const std::string run = save("a", {1, 2, 3, 4}, 7);
  const std::string path = run + "/step-000003/shard-00000-000.safetensors";
  std::string shard = testing::bytes_of_file(path);
  shard[shard.size() - 1] ^= 1;
  testing::put_file(path, shard);
  describe_tensors(*open_tensors(run), /*values=*/false);
  const std::string what = testing::refusal_code(
      Code::kDamagedCheckpoint, [&] { describe_tensors(*open_tensors(run), /*values=*/true); });
  EXPECT_PRED2(has, what, "checksum");
}

TEST_F(Two, WhatHoldsTensorsIsToldByItsContent) {
  const std::string run = save("a", {1, 2, 3, 4}, 7);
  EXPECT_TRUE(holds_tensors(run));
  EXPECT_TRUE(holds_tensors(run + "/step-000003"));
  EXPECT_FALSE(holds_tensors(folder.path()));
  EXPECT_FALSE(holds_tensors(folder / "not_there.safetensors"));
  testing::refusal_code(Code::kNoCheckpoint, [&] { open_tensors(folder.path()); });
}

}  // namespace
}  // namespace troupe
