#include "troupe/distributed/world/store_key.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/mesh/process_mesh.h"

namespace troupe {
namespace {

// What stands before and behind a group's key: the run's name with the longest process text that
// Linux gives (a PID of 7 digits, the boot's and the name space's numbers), and what c10d and Gloo
// append for one of 10,000 ranks, of which the longest in PyTorch 2.11 to 2.15 is below 40 bytes.
constexpr size_t kRun = sizeof("troupe//") + kLongestJob + 3 +
                        sizeof("4194304 00000000-0000-0000-0000-000000000000pid:[4294967295]/");
constexpr size_t kOfBackend = 40;

// Every divisor of n that a layout may take an axis of.
std::vector<int64_t> axes(int64_t n, int64_t most) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= std::min(n, most); ++d) {
    if (n % d == 0) out.push_back(d);
  }
  return out;
}

constexpr GroupKind kKinds[] = {
    GroupKind::kWorld,        GroupKind::kTensor,      GroupKind::kContext,
    GroupKind::kPipeline,     GroupKind::kData,        GroupKind::kExpert,
    GroupKind::kExpertTensor, GroupKind::kExpertData,  GroupKind::kShard,
    GroupKind::kReplicate,    GroupKind::kExpertShard, GroupKind::kExpertReplicate,
    GroupKind::kMicrobatch,   GroupKind::kStage,       GroupKind::kExperts};

struct Longest {
  size_t bytes = 0;
  int64_t groups = 0;
  std::map<std::string, uint64_t> of = {};  // another hash of the list, by its key

  void take(const std::vector<int64_t>& ranks) {
    const std::string key = group_key("staged", ranks, std::string(200, 'c'));
    bytes = std::max(bytes, key.size());
    ++groups;
    uint64_t other = ranks.size();
    for (const int64_t r : ranks) other = other * 1'099'511'628'211 + static_cast<uint64_t>(r);
    ASSERT_EQ(of.try_emplace(key, other).first->second, other) << key;  // two lists share none
  }
};

// The groups of some ranks of each layout, with tensor, expert and pipeline ranks in both orders:
// strides of 2 and more over the whole world are among them.
void take_layouts(int64_t world, Longest& longest) {
  for (const MeshOrder order : {MeshOrder::kDataInStage, MeshOrder::kStageInData}) {
    for (const int64_t tensor : axes(world, 8)) {
      for (const int64_t context : axes(world, 4)) {
        for (const int64_t pipeline : axes(world, 16)) {
          for (const int64_t expert : axes(world, 64)) {
            const MeshShape shape{.tensor = tensor,
                                  .context = context,
                                  .pipeline = pipeline,
                                  .expert = expert,
                                  .order = order};
            if (!ProcessMesh::faults(world, shape).empty()) continue;
            const ProcessMesh mesh(world, shape);
            for (const GroupKind kind : kKinds) {
              for (const int64_t rank : {int64_t{0}, int64_t{1}, world - 1}) {
                longest.take(mesh.ranks_of(kind, rank));
              }
            }
          }
        }
      }
    }
  }
}

TEST(StoreKey, NoGroupOfThousandsOfRanksHasALongKey) {
  for (const int64_t world : {3072, 4096}) {
    Longest longest;
    take_layouts(world, longest);
    EXPECT_GT(longest.groups, 5000) << world;
    EXPECT_GT(longest.of.size(), 100u) << world;
    EXPECT_LE(kRun + longest.bytes + kOfBackend, kLongestKey) << world;
  }
}

// 1,536 ranks of stride 2, whose list has 8,659 bytes: what tensor 2 makes of 3,072.
TEST(StoreKey, AStrideOfTwoIsToldFromItsNeighbor) {
  std::vector<int64_t> even, odd;
  for (int64_t r = 0; r < 3072; r += 2) {
    even.push_back(r);
    odd.push_back(r + 1);
  }
  const std::string key = group_key("gloo", even, "");
  EXPECT_TRUE(key.starts_with("gloo/0-3070.1536-")) << key;
  EXPECT_LT(key.size(), 60u);
  EXPECT_NE(key, group_key("gloo", odd, ""));
  EXPECT_NE(key, group_key("gloo", even, "other"));
  EXPECT_NE(key, group_key("nccl", even, ""));
  EXPECT_EQ(key, group_key("gloo", even, ""));
  // One that begins, ends and counts alike.
  even[700] += 1;
  EXPECT_NE(key, group_key("gloo", even, ""));
  EXPECT_NE(group_key("gloo", {0, 1, 2, 3}, ""), group_key("gloo", {0, 2, 1, 3}, ""));
}

TEST(StoreKey, AShortNameIsKeptAndALongOneIsHashed) {
  EXPECT_EQ(short_name("checkpoint", 64), "checkpoint");
  const std::string a = "data.train[0].path " + std::string(300, 'a'), b = a + 'b';
  EXPECT_EQ(short_name(a, 64).size(), 64u);
  EXPECT_TRUE(short_name(a, 64).starts_with("data.train[0].path aaa"));
  EXPECT_NE(short_name(a, 64), short_name(b, 64));
  EXPECT_EQ(short_name(a, 64), short_name(a, 64));
  EXPECT_THROW(short_name(a, 20), Error);
}

}  // namespace
}  // namespace troupe
