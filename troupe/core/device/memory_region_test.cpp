#include "troupe/core/device/memory_region.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace troupe {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(MemoryRegion, BlocksAreWritableAlignedAndApart) {
  MemoryRegion region(64 * kMiB);
  std::vector<std::pair<char*, int64_t>> blocks;
  for (const int64_t bytes : {int64_t{1}, int64_t{4096}, 3 * kMiB + 5, int64_t{0}, kMiB}) {
    char* const at = static_cast<char*>(region.allocate(bytes));
    ASSERT_NE(at, nullptr);
    EXPECT_TRUE(region.holds(at));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 64, 0U);
    std::memset(at, static_cast<int>(blocks.size()), bytes);
    blocks.emplace_back(at, bytes);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto& [at, bytes] = blocks[i];
    EXPECT_EQ(std::count(at, at + bytes, static_cast<char>(i)), bytes);
  }
  EXPECT_FALSE(region.holds(&region));
}

TEST(MemoryRegion, NeighborsThatAreFreeAreOneBlock) {
  MemoryRegion region(64 * kMiB);
  const std::vector<std::vector<int>> orders = {{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}};
  const int64_t most = [&] {
    void* const all = region.allocate(30 * kMiB);
    region.release(all);
    return region.bytes();
  }();
  for (const std::vector<int>& order : orders) {
    void* blocks[3];
    for (void*& block : blocks) block = region.allocate(9 * kMiB);
    for (const int i : order) region.release(blocks[i]);
    void* const all = region.allocate(30 * kMiB);
    EXPECT_EQ(all, blocks[0]);
    region.release(all);
  }
  EXPECT_EQ(region.bytes(), most);
}

TEST(MemoryRegion, GrowsByWhatItsLastFreeBlockLacks) {
  MemoryRegion region(64 * kMiB);
  void* const first = region.allocate(7 * kMiB);
  region.release(region.allocate(8 * kMiB));
  region.release(region.allocate(20 * kMiB));
  EXPECT_LE(region.bytes(), 30 * kMiB);
  region.release(first);
}

TEST(MemoryRegion, GivesNothingWhereNothingIsLeft) {
  MemoryRegion region(8 * kMiB);
  void* const block = region.allocate(5 * kMiB);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(region.allocate(5 * kMiB), nullptr);
  region.release(block);
  EXPECT_EQ(region.allocate(5 * kMiB), block);
  EXPECT_EQ(region.allocate(int64_t{1} << 40), nullptr);
}

TEST(MemoryRegion, OneOfNoBytesGivesNothing) {
  MemoryRegion region(0);
  EXPECT_EQ(region.allocate(1), nullptr);
  EXPECT_FALSE(region.holds(&region));
  EXPECT_FALSE(region.holds(nullptr));
}

// What several threads hold at a time stays theirs.
TEST(MemoryRegion, ThreadsShareIt) {
  MemoryRegion region(256 * kMiB);
  const auto work = [&](unsigned char mark) {
    std::mt19937 random(mark);
    std::vector<std::pair<unsigned char*, int64_t>> held;
    for (int i = 0; i < 400; ++i) {
      if (held.size() == 8) {
        const auto [at, bytes] = held[random() % 8];
        ASSERT_EQ(std::count(at, at + bytes, mark), bytes);
        region.release(at);
        std::erase(held, std::pair(at, bytes));
      }
      const int64_t bytes = static_cast<int64_t>(random() % 100000);
      auto* const at = static_cast<unsigned char*>(region.allocate(bytes));
      std::memset(at, mark, bytes);
      held.emplace_back(at, bytes);
    }
    for (const auto& [at, bytes] : held) region.release(at);
  };
  std::thread one(work, 1), two(work, 2);
  one.join();
  two.join();
  const int64_t all = region.bytes();  // one free block again
  EXPECT_NE(region.allocate(all - 64), nullptr);
  EXPECT_EQ(region.bytes(), all);
}

}  // namespace
}  // namespace troupe
