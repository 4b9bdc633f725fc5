// The kernels of a build for sm_80 alone, whose PTX a newer GPU compiles: what is written for clusters
// is not in them.
#include <gtest/gtest.h>

#include <vector>

#include "troupe/kernels/histogram/histogram.h"
#include "troupe/testing/backend.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;

TEST(HistogramOfAnOlderBuild, CountsAsTheReference) {
  if (!testing::available(Backend::kCuda)) GTEST_SKIP() << "no GPU here";
  constexpr int64_t kRows = 2, kElements = 4096, kBins = 128;  // a cluster would count a row
  Buffer<int32_t> x(kRows * kElements), got(kRows * kBins);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int32_t>(i * i % 131);
  for (size_t i = 0; i < got.size(); ++i) got[i] = -77;
  std::vector<int32_t> want(got.size());
  Histogram args{.x = {x.data(), IntDtype::kI32, kRows, kElements}, .bins = kBins};
  args.out = want.data();
  histogram_ref(args);
  args.out = got.data();
  EXPECT_GT(choose_histogram_plan(args).cluster_blocks, 0);
  testing::run(Backend::kCuda, args, histogram_cpu, TROUPE_CUDA_PATH(histogram_cuda));
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << i;
}

}  // namespace
}  // namespace troupe
