#include "troupe/checkpoint/files/box.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "troupe/core/check.h"
#include "troupe/testing/cpu_seconds.h"

namespace troupe {
namespace {

// The numbers of a global tensor's elements that a box holds, in its order.
std::vector<int64_t> elements(const Box& box) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < box.numel(); ++i) {
    int64_t rest = i, index = 0, stride = 1;
    for (size_t d = box.size.size(); d-- > 0;) {
      index += (rest % box.size[d] + box.offset[d]) * stride;
      rest /= box.size[d];
      stride *= box.global[d];
    }
    out.push_back(index);
  }
  return out;
}

TEST(Box, RunsCarryEveryElementOfAnyCutToItsPlace) {
  const Sizes global = {4, 3, 6};
  std::vector<Box> boxes = {Box::whole(global)};
  for (const int64_t r : {0, 1, 3}) {
    for (const int64_t c : {0, 2}) boxes.push_back({global, {r, c, 2 * c}, {1, 1, 2}});
    boxes.push_back({global, {r, 0, 0}, {1, 3, 6}});
    boxes.push_back({global, {0, 0, r}, {4, 3, 3}});
    boxes.push_back({global, {0, 1, r}, {4, 2, 3}});
  }
  boxes.push_back({global, {0, 1, 0}, {4, 2, 6}});
  for (const Box& source : boxes) {
    for (const Box& target : boxes) {
      const std::vector<int64_t> from_elements = elements(source), want = elements(target);
      std::vector<int64_t> got(want.size(), -1);
      Box part;
      int64_t shared = 0, last = -1;
      if (overlap(source, target, part)) {
        for_each_run(source, target, part, [&](int64_t from, int64_t to, int64_t count) {
          EXPECT_GT(from, last);  // ascending in the source
          last = from + count - 1;
          shared += count;
          for (int64_t i = 0; i < count; ++i) {
            got[static_cast<size_t>(to + i)] = from_elements[static_cast<size_t>(from + i)];
          }
        });
      }
      int64_t expected = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        const bool has = std::ranges::find(from_elements, want[i]) != from_elements.end();
        expected += has;
        EXPECT_EQ(got[i], has ? want[i] : -1) << to_text(source) << " to " << to_text(target);
      }
      EXPECT_EQ(shared, expected);
    }
  }
}

TEST(Box, AWholeTensorIsOneRunAndANumberToo) {
  int runs = 0;
  const Box whole = Box::whole({5, 7}), one = Box::whole({});
  for_each_run(whole, whole, whole, [&](int64_t, int64_t, int64_t n) { runs += n == 35; });
  for_each_run(one, one, one, [&](int64_t, int64_t, int64_t n) { runs += n == 1; });
  EXPECT_EQ(runs, 2);
  const Box rows = {{5, 7}, {2, 0}, {3, 7}};  // rows are together: still one run
  runs = 0;
  for_each_run(whole, rows, rows, [&](int64_t from, int64_t to, int64_t n) {
    runs += from == 14 && to == 0 && n == 21;
  });
  EXPECT_EQ(runs, 1);
}

TEST(Box, TellsATilingFromHolesAndOverlaps) {
  const Box whole = Box::whole({4, 4}), top = {{4, 4}, {0, 0}, {2, 4}},
            bottom = {{4, 4}, {2, 0}, {2, 4}}, left = {{4, 4}, {0, 0}, {4, 2}};
  EXPECT_TRUE(tiles({top, bottom}, whole));
  EXPECT_TRUE(tiles({top, bottom}, left));
  EXPECT_FALSE(tiles({top}, whole));
  EXPECT_TRUE(tiles({top}, top));
  EXPECT_FALSE(tiles({top, left}, whole));
  EXPECT_FALSE(tiles({top, bottom, left}, whole));
  EXPECT_FALSE(tiles({top, top}, whole));
  EXPECT_TRUE(tiles({Box::whole({0, 4})}, Box::whole({0, 4})));
  EXPECT_TRUE(tiles({Box::whole({})}, Box::whole({})));
  EXPECT_FALSE(tiles({}, Box::whole({})));
}

TEST(Box, RefusesABoxOutsideItsTensorOrBeyond63Bits) {
  validate(Box{{4, 4}, {2, 0}, {2, 4}});
  validate(Box{{4}, {4}, {0}});
  EXPECT_THROW(validate(Box{{4, 4}, {3, 0}, {2, 4}}), Error);
  EXPECT_THROW(validate(Box{{4, 4}, {-1, 0}, {2, 4}}), Error);
  EXPECT_THROW(validate(Box{{4, 4}, {0}, {2, 4}}), Error);
  EXPECT_THROW(validate(Box{{4}, {0}, {-1}}), Error);
  EXPECT_THROW(validate(Box::whole({int64_t{1} << 32, int64_t{1} << 31})), Error);
  EXPECT_THROW(validate(Box{{9}, {INT64_MAX}, {1}}), Error);
  EXPECT_EQ(to_text(Box{{4, 8}, {0, 2}, {4, 3}}), "[0:4, 2:5] of [4, 8]");
  EXPECT_EQ(to_text(Box::whole({4, 8})), "[4, 8]");
}

// Each pair was compared: a forged index of 40,000 slices took most of a minute.
TEST(Box, F164_TilesOfAManifoldIndexAreCountedInTime) {
  constexpr int64_t kSide = 200;
  const Sizes global = {kSide, kSide};
  std::vector<Box> cells;
  for (int64_t i = 0; i < kSide * kSide; ++i) {
    cells.push_back({global, {i % kSide, i / kSide}, {1, 1}});
  }
  const double begin = cpu_seconds();
  EXPECT_TRUE(tiles(cells, Box::whole(global)));
  cells.back() = cells.front();
  EXPECT_FALSE(tiles(cells, Box::whole(global)));
  cells.assign(40000, Box::whole(global));
  EXPECT_FALSE(tiles(cells, Box::whole(global)));
  EXPECT_LT(cpu_seconds() - begin, 10);
}

// Random cuts of a box tile it; with one part moved, doubled or lost they do not.
TEST(Box, AnyPartsTileAndNoOthersDo) {
  std::mt19937 random(7);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int round = 0; round < 200; ++round) {
    const Sizes global = {1 + below(6), 1 + below(6), 1 + below(6)};
    std::vector<Box> parts = {Box::whole(global)};
    for (int cut = 0; cut < 12; ++cut) {
      Box& box = parts[static_cast<size_t>(below(std::ssize(parts)))];
      const auto d = static_cast<size_t>(below(3));
      if (box.size[d] < 2) continue;
      const int64_t at = 1 + below(box.size[d] - 1);
      Box upper = box;
      upper.offset[d] += at, upper.size[d] -= at;
      box.size[d] = at;
      parts.push_back(upper);
    }
    std::shuffle(parts.begin(), parts.end(), random);
    EXPECT_TRUE(tiles(parts, Box::whole(global)));
    std::vector<Box> other = parts;
    other.push_back(other.front());
    EXPECT_FALSE(tiles(other, Box::whole(global)));
    other = parts;
    other.pop_back();
    EXPECT_FALSE(tiles(other, Box::whole(global)));
    if (parts.size() > 1) {
      other.push_back(other.front());  // as many elements may be in them as in the whole
      EXPECT_FALSE(tiles(other, Box::whole(global)));
    }
  }
}

}  // namespace
}  // namespace troupe
