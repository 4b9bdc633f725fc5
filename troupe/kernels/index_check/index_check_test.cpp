#include "troupe/kernels/index_check/index_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/backend.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;

constexpr int64_t kSize = 100001, kSegments = 40;

// Offsets of segments of 3 rows, their counts, and indices of which the last 3 are not read.
struct Problem {
  Problem() : offset(kSegments + 1), counts(kSegments), index(kSize), faults(3), used(1) {
    used[0] = kSize - 3;
    for (int64_t e = 0; e <= kSegments; ++e) offset[e] = static_cast<int32_t>(3 * e);
    for (int64_t e = 0; e < kSegments; ++e) counts[e] = e % 4;
    for (int64_t i = 0; i < kSize; ++i) index[i] = static_cast<int32_t>(i % 7) - 1;
  }
  IndexCheck args() {
    IndexCheck a;
    a.spans[0] = {.name = "offset",
                  .data = offset.data(),
                  .size = kSegments + 1,
                  .high = 3 * kSegments,
                  .rising = true};
    a.spans[1] = {.name = "counts",
                  .data = counts.data(),
                  .wide = true,
                  .size = kSegments,
                  .high = kSize,
                  .offset = offset.data()};
    a.spans[2] = {.name = "index",
                  .data = index.data(),
                  .size = kSize,
                  .low = -1,
                  .high = 5,
                  .used = used.data()};
    a.count = 3;
    a.faults = faults.data();
    return a;
  }
  std::vector<int32_t> found() { return {faults[0], faults[1], faults[2]}; }

  Buffer<int32_t> offset;
  Buffer<int64_t> counts;
  Buffer<int32_t> index;
  Buffer<int32_t> faults;
  Buffer<int32_t> used;
};

class IndexCheckTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
  std::vector<int32_t> found(Problem& p) const {
    testing::run(GetParam(), p.args(), index_check_cpu, TROUPE_CUDA_PATH(index_check_cuda));
    return p.found();
  }
};

TEST_P(IndexCheckTest, NothingIsAtFaultAtTheBounds) {
  Problem p;
  EXPECT_EQ(found(p), (std::vector<int32_t>{0, 0, 0}));
}

TEST_P(IndexCheckTest, CountsWhatIsOutOfBoundsFallsOrIsMoreThanItsSegment) {
  Problem p, want;
  for (Problem* q : {&p, &want}) {
    q->offset[5] = 7;     // falls from 12; segment 4 has -5 rows then, and segment 5 has 11
    q->offset[9] = -1;    // and falls
    q->offset[40] = 121;  // of 120 rows
    q->counts[7] = int64_t{1} << 32;
    q->counts[11] = std::numeric_limits<int64_t>::min();
    q->index[0] = -2;
    q->index[kSize - 4] = 6;
    q->index[kSize - 3] = 6;  // not read
    q->index[77] = std::numeric_limits<int32_t>::max();
  }
  index_check_ref(want.args());
  EXPECT_EQ(want.faults[0], 3);
  EXPECT_EQ(want.faults[2], 3);
  EXPECT_GE(want.faults[1], 3);
  EXPECT_EQ(found(p), want.found());
}

TEST_P(IndexCheckTest, E1_EmptySpans) {
  Problem p;
  IndexCheck a = p.args();
  for (IndexSpan& s : a.spans) s.size = 0, s.data = nullptr;
  p.faults[0] = p.faults[1] = p.faults[2] = 9;
  testing::run(GetParam(), a, index_check_cpu, TROUPE_CUDA_PATH(index_check_cuda));
  EXPECT_EQ(p.found(), (std::vector<int32_t>{0, 0, 0}));
}
INSTANTIATE_TEST_SUITE_P(All, IndexCheckTest,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

// What the CPU path says of the first fault.
std::string refusal(Problem& p) {
  IndexCheck a = p.args();
  a.faults = nullptr;
  try {
    index_check_cpu(a, serial);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(IndexCheck, WithoutFaultsTheFirstOneIsAnError) {
  Problem p;
  EXPECT_EQ(refusal(p), "");
  p.index[50] = 9, p.index[60] = 10;
  EXPECT_EQ(refusal(p), "index: E9001 must lie in -1..5; element 50 is 9");
  p.counts[2] = 4;
  EXPECT_EQ(refusal(p),
            "counts: E9001 must be at most the rows of its segment; element 2 is 4 of 3 rows");
  p.offset[3] = 4;
  EXPECT_EQ(refusal(p), "offset: E9001 must not fall below 6; element 3 is 4");
  p.offset[0] = 1;
  EXPECT_EQ(refusal(p), "offset: E9001 must begin at 0; element 0 is 1");
}

}  // namespace
}  // namespace troupe
