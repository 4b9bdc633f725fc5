#include "troupe/checkpoint/box.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "troupe/core/check.h"

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
  const Box rows = {{5, 7}, {2, 0}, {3, 7}};  // rows lie together: still one run
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

}  // namespace
}  // namespace troupe
