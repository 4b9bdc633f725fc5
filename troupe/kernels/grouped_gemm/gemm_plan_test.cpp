#include "troupe/kernels/grouped_gemm/gemm_plan.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

constexpr DeviceLimits kH200{.capability = 90,
                             .processors = 132,
                             .shared_per_block = 232448,
                             .shared_per_processor = 233472};
constexpr DeviceLimits kAda{.capability = 89,
                            .processors = 128,
                            .shared_per_block = 101376,
                            .shared_per_processor = 102400};

GemmProblem problem(Dtype dtype, int64_t rows, int64_t cols, bool aligned = true) {
  return {.dtype = dtype,
          .experts = 8,
          .rows = rows,
          .rows_are_routed = true,
          .cols = cols,
          .aligned = aligned};
}

TEST(GemmPlan, TakesWideTilesWhereTheyWasteLittle) {
  for (int64_t cols : {256, 512, 1408, 2048, 14336}) {
    EXPECT_EQ(choose_plan(problem(Dtype::kBF16, 4096, cols), kH200).tile_n, 256) << cols;
  }
  for (int64_t cols : {1, 8, 128, 300, 384, 640}) {
    EXPECT_EQ(choose_plan(problem(Dtype::kBF16, 4096, cols), kH200).tile_n, 128) << cols;
  }
  EXPECT_EQ(choose_plan(problem(Dtype::kF32, 4096, 2048), kH200).tile_n, 128);
  EXPECT_EQ(choose_plan(problem(Dtype::kBF16, 4096, 2048, false), kH200).tile_n, 128);
}

TEST(GemmPlan, TileDependsOnWidthsAndTypeAlone) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    for (int64_t cols : {64, 768, 1536}) {
      const GemmPlan want = choose_plan(problem(dtype, 1, cols), kH200);
      for (int64_t rows : {127, 128, 4096, 1 << 20}) {
        GemmProblem other = problem(dtype, rows, cols);
        other.experts = rows;
        const GemmPlan got = choose_plan(other, kAda);
        EXPECT_EQ(got.tile_n, want.tile_n);
        EXPECT_EQ(got.tile_m, want.tile_m);
        EXPECT_EQ(got.depth, want.depth);
      }
    }
  }
}

TEST(GemmPlan, CountsATileForEachSegmentsEnd) {
  // 1000 rows fill seven tiles, and each of 8 experts may begin one more; 512 columns are two.
  EXPECT_EQ(choose_plan(problem(Dtype::kBF16, 1000, 512), kH200).tiles, (7 + 8) * 2);
  // No more experts than rows have any.
  EXPECT_EQ(choose_plan(problem(Dtype::kBF16, 3, 512), kH200).tiles, 3 * 2);
  GemmProblem weight = problem(Dtype::kBF16, 300, 512);
  weight.rows_are_routed = false;
  EXPECT_EQ(choose_plan(weight, kH200).tiles, 8 * 3 * 2);
}

TEST(GemmPlan, FillsTheDeviceAndNoMore) {
  const GemmPlan wide = choose_plan(problem(Dtype::kBF16, 1 << 20, 2048), kH200);
  EXPECT_EQ(wide.blocks, 132);
  EXPECT_EQ(wide.threads, 256);
  const GemmPlan narrow = choose_plan(problem(Dtype::kBF16, 1 << 20, 128), kH200);
  EXPECT_EQ(narrow.blocks, 2 * 132);
  EXPECT_EQ(narrow.threads, 128);
  EXPECT_EQ(choose_plan(problem(Dtype::kBF16, 1 << 20, 128), kAda).blocks, 128);
  EXPECT_EQ(choose_plan(problem(Dtype::kBF16, 128, 256), kH200).blocks, 1 + 8);
}

TEST(GemmPlan, FitsEveryDeviceFromSm80On) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    for (int64_t cols : {100, 1024}) {
      EXPECT_LE(choose_plan(problem(dtype, 4096, cols), kAda).shared_bytes, kAda.shared_per_block);
    }
  }
}

TEST(GemmPlan, PlainProductsTakeHoppersOwnKernels) {
  GemmProblem plain = problem(Dtype::kBF16, 4096, 2048);
  plain.plain = true;
  EXPECT_EQ(choose_plan(plain, kH200).path, Path::kSm90);
  EXPECT_EQ(choose_plan(plain, kAda).path, Path::kGeneric);
  DeviceLimits later = kH200;
  later.capability = 100;
  EXPECT_EQ(choose_plan(plain, later).path, Path::kGeneric);
  EXPECT_EQ(choose_plan(problem(Dtype::kBF16, 4096, 2048), kH200).path, Path::kGeneric);
}

TEST(GemmPlan, RefusesWhatItCannotRun) {
  DeviceLimits old = kH200;
  old.capability = 75;
  EXPECT_THROW(choose_plan(problem(Dtype::kBF16, 1, 1), old), Error);
  DeviceLimits small = kH200;
  small.shared_per_block = 48 * 1024;
  EXPECT_THROW(choose_plan(problem(Dtype::kBF16, 1, 1), small), Error);
  EXPECT_THROW(choose_plan(problem(Dtype::kBF16, int64_t{1} << 31, 1 << 20), kH200), Error);
}

TEST(GemmPlan, PrintsWhatItChose) {
  EXPECT_EQ(to_text(choose_plan(problem(Dtype::kBF16, 1000, 512), kH200)),
            "generic 128x256x32 stages 4 threads 256 aligned shared 98304 tiles 30 blocks 30");
}

}  // namespace
}  // namespace troupe
