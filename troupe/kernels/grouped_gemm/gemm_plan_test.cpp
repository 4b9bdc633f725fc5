#include "troupe/kernels/grouped_gemm/gemm_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "troupe/core/number/round.h"

namespace troupe {
namespace {

constexpr DeviceLimits kH200{.capability = 90,
                             .processors = 132,
                             .shared_per_block = 232448,
                             .shared_per_processor = 233472,
                             .sm90_code = true};
constexpr DeviceLimits kAda{.capability = 89,
                            .processors = 128,
                            .shared_per_block = 101376,
                            .shared_per_processor = 102400};
constexpr DeviceLimits kA10{
    .capability = 86, .processors = 72, .shared_per_block = 101376, .shared_per_processor = 102400};
constexpr DeviceLimits kA100{.capability = 80,
                             .processors = 108,
                             .shared_per_block = 166912,
                             .shared_per_processor = 167936};
constexpr DeviceLimits kRtx5090{.capability = 120,
                                .processors = 170,
                                .shared_per_block = 101376,
                                .shared_per_processor = 102400};
constexpr DeviceLimits kKnown[] = {kA100, kA10, kAda, kH200, kRtx5090};

GemmProblem problem(Dtype dtype, int64_t rows, int64_t cols, bool aligned = true) {
  return {.dtype = dtype,
          .experts = 8,
          .rows = rows,
          .rows_are_routed = true,
          .cols = cols,
          .aligned = aligned};
}

// As the sweep of an H100 has it: rows in tiles of 128 columns, weight gradients in tiles of 256.
TEST(GemmTable, AnH100TakesWideTilesForLargeWeightGradientsAlone) {
  const auto columns = [](bool routed, int64_t experts, int64_t rows, int64_t cols) {
    GemmProblem p = problem(Dtype::kBF16, rows, cols);
    p.rows_are_routed = routed;
    p.experts = experts;
    return choose_plan(p, kH200).tile_n;
  };
  for (int64_t cols : {256, 512, 2048, 14336})
    EXPECT_EQ(columns(true, 64, 65536, cols), 128) << cols;
  for (int64_t cols : {16, 64}) EXPECT_EQ(columns(true, 64, 65536, cols), 64) << cols;
  for (int64_t cols : {1024, 2048}) EXPECT_EQ(columns(false, 64, 2048, cols), 256) << cols;
  EXPECT_EQ(columns(false, 16, 640, 512), 128);
  EXPECT_EQ(columns(false, 8, 256, 256), 64);
}

TEST(GemmPlan, OtherTypesAndUnalignedRowsHaveOneTile) {
  EXPECT_EQ(choose_plan(problem(Dtype::kF32, 4096, 2048), kH200).tile_n, 128);
  EXPECT_EQ(choose_plan(problem(Dtype::kBF16, 4096, 2048, false), kH200).tile_n, 128);
}

// What the order of a sum follows from.
TEST(GemmPlan, DepthDependsOnTheTypeAlone) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    for (int64_t cols : {1, 64, 768, 1536}) {
      for (int64_t rows : {1, 128, 4096, 1 << 20}) {
        for (const DeviceLimits& device : kKnown) {
          GemmProblem p = problem(dtype, rows, cols);
          p.experts = rows;
          EXPECT_EQ(choose_plan(p, device).depth, dtype == Dtype::kF32 ? 16 : 32);
        }
      }
    }
  }
}

TEST(GemmTable, AnUnknownCapabilityTakesTheNearestLowerOne) {
  for (const DeviceLimits& known : kKnown) {
    EXPECT_EQ(gemm_entry(known.capability).capability, known.capability);
  }
  EXPECT_EQ(gemm_entry(81).capability, 80);
  EXPECT_EQ(gemm_entry(87).capability, 86);
  EXPECT_EQ(gemm_entry(100).capability, 90);
  EXPECT_EQ(gemm_entry(110).capability, 90);
  EXPECT_EQ(gemm_entry(121).capability, 120);
}

TEST(GemmTable, EntriesRiseAndNameTilesThatWereBuiltTheWidestFirst) {
  int last = 0;
  for (const GemmEntry& entry : gemm_entries()) {
    EXPECT_LT(last, entry.capability);
    last = entry.capability;
    for (bool routed : {false, true}) {
      GemmProblem p = problem(Dtype::kBF16, 4096, 2048);
      p.rows_are_routed = routed;
      int narrower = 1 << 20;
      for (const TileSpeed& t : routed ? entry.rows : entry.weight) {
        if (t.n == 0) continue;
        EXPECT_EQ(std::ranges::count(built_tiles(p), t.tile()), 1) << entry.capability;
        EXPECT_LT(t.n, narrower);
        EXPECT_GT(t.rate, 0);
        narrower = t.n;
      }
      EXPECT_LE(narrower, 128) << "an entry must have a tile for narrow results";
    }
  }
}

// All blocks of a tile stand on a multiprocessor at once: in shared memory, of which the driver
// takes 1 KiB a block, and in registers, of which a thread of a large tile needs 255.
TEST(GemmTable, EveryEntryFitsItsGpu) {
  for (const DeviceLimits& device : kKnown) {
    const GemmEntry& entry = gemm_entry(device.capability);
    ASSERT_EQ(entry.capability, device.capability);
    for (bool routed : {false, true}) {
      for (const TileSpeed& t : routed ? entry.rows : entry.weight) {
        if (t.n == 0) continue;
        GemmProblem p = problem(Dtype::kBF16, 1 << 20, 2048);
        p.rows_are_routed = routed;
        p.tile = t.tile();
        const GemmPlan plan = choose_plan(p, device);
        const std::string what = std::to_string(device.capability) + ": " + to_text(plan);
        EXPECT_LE(plan.shared_bytes, device.shared_per_block) << what;
        EXPECT_LE(t.blocks * (plan.shared_bytes + 1024), device.shared_per_processor) << what;
        EXPECT_LE(t.blocks * plan.threads * 256, 65536) << what;
        EXPECT_EQ(plan.blocks, device.processors * t.blocks) << what;
      }
    }
  }
}

TEST(GemmTable, AnA100TakesNarrowTilesForNarrowOrFewOnes) {
  const auto columns = [](int64_t rows, int64_t cols) {
    return choose_plan(problem(Dtype::kBF16, rows, cols), kA100).tile_n;
  };
  EXPECT_EQ(columns(1 << 16, 2048), 256);
  EXPECT_EQ(columns(1 << 16, 384), 128);
  EXPECT_EQ(columns(1 << 16, 32), 64);
  EXPECT_EQ(columns(1 << 16, 192), 64);  // three, of which no part is empty
  // 16 row tiles at most, so 32 tiles of 256 columns, 64 of 128 or 128 of 64, for 108
  // multiprocessors.
  EXPECT_EQ(columns(1024, 512), 64);
  EXPECT_EQ(columns(4096, 1024), 128);  // 40 row tiles
  const GemmPlan wide = choose_plan(problem(Dtype::kBF16, 1 << 16, 2048), kA100);
  EXPECT_EQ(to_text(wide),
            "generic 128x256x32 stages 4 threads 256 aligned shared 98304 tiles 4160 blocks 108");
}

TEST(GemmTable, ThreeStagesMakeRoomForASecondBlock) {
  for (const DeviceLimits& device : {kA10, kAda}) {
    const GemmPlan plan = choose_plan(problem(Dtype::kBF16, 1 << 20, 128), device);
    EXPECT_EQ(plan.stages, 3);
    EXPECT_EQ(plan.blocks, 2 * device.processors);
    GemmProblem four = problem(Dtype::kBF16, 1 << 20, 128);
    four.tile = {128, 4};
    EXPECT_EQ(choose_plan(four, device).blocks, device.processors);
  }
}

TEST(GemmPlan, TakesTheTileThatIsAskedForOnAnyGpu) {
  GemmProblem p = problem(Dtype::kBF16, 4096, 2048);
  p.plain = true;
  for (const DeviceLimits& device : kKnown) {
    for (const GemmTile tile : built_tiles(p)) {
      p.tile = tile;
      const GemmPlan plan = choose_plan(p, device);
      EXPECT_EQ(plan.path, Path::kGeneric);
      EXPECT_EQ((GemmTile{plan.tile_n, plan.stages}), tile);
    }
  }
}

TEST(GemmPlan, CountsATileForEachSegmentsEnd) {
  // 1000 rows fill seven tiles, and each of 8 experts may begin one more; 512 columns are two.
  const auto tiles = [](GemmProblem p) {
    p.tile = {256, 4};
    return choose_plan(p, kH200).tiles;
  };
  EXPECT_EQ(tiles(problem(Dtype::kBF16, 1000, 512)), (7 + 8) * 2);
  // No more experts than rows have any.
  EXPECT_EQ(tiles(problem(Dtype::kBF16, 3, 512)), 3 * 2);
  GemmProblem weight = problem(Dtype::kBF16, 300, 512);
  weight.rows_are_routed = false;
  EXPECT_EQ(tiles(weight), 8 * 3 * 2);
}

TEST(GemmPlan, FillsTheDeviceAndNoMore) {
  const GemmPlan wide = choose_plan(problem(Dtype::kBF16, 1 << 20, 2048), kA100);
  EXPECT_EQ(wide.blocks, 108);
  EXPECT_EQ(wide.threads, 256);
  const GemmPlan narrow = choose_plan(problem(Dtype::kBF16, 1 << 20, 128), kH200);
  EXPECT_EQ(narrow.blocks, 2 * 132);
  EXPECT_EQ(narrow.threads, 128);
  EXPECT_EQ(choose_plan(problem(Dtype::kF32, 1 << 20, 128), kAda).blocks, 128);
  EXPECT_EQ(choose_plan(problem(Dtype::kBF16, 128, 64), kH200).blocks, 1 + 8);
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
  // A build without code for sm_90a, or whose machine code the driver was told to leave alone.
  DeviceLimits by_ptx = kH200;
  by_ptx.sm90_code = false;
  EXPECT_EQ(choose_plan(plain, by_ptx).path, Path::kGeneric);
  EXPECT_EQ(choose_plan(plain, by_ptx).tile_n,
            choose_plan(problem(Dtype::kBF16, 4096, 2048), kH200).tile_n);
  EXPECT_EQ(choose_plan(problem(Dtype::kBF16, 4096, 2048), kH200).path, Path::kGeneric);
}

TEST(GemmPlan, RefusesWhatItCannotRun) {
  DeviceLimits old = kH200;
  old.capability = 75;
  EXPECT_THROW(choose_plan(problem(Dtype::kBF16, 1, 1), old), Error);
  DeviceLimits small = kH200;
  small.shared_per_block = 40 * 1024;
  EXPECT_THROW(choose_plan(problem(Dtype::kBF16, 1, 1), small), Error);
  EXPECT_THROW(choose_plan(problem(Dtype::kBF16, int64_t{1} << 31, 1 << 20), kH200), Error);
  GemmProblem unbuilt = problem(Dtype::kBF16, 128, 128);
  unbuilt.tile = {128, 5};
  EXPECT_THROW(choose_plan(unbuilt, kH200), Error);
  unbuilt = problem(Dtype::kF32, 128, 128);
  unbuilt.tile = {256, 4};
  EXPECT_THROW(choose_plan(unbuilt, kH200), Error);
  unbuilt = problem(Dtype::kBF16, 128, 128, false);
  unbuilt.tile = {64, 4};
  EXPECT_THROW(choose_plan(unbuilt, kH200), Error);
}

TEST(GemmPlan, PrintsWhatItChose) {
  EXPECT_EQ(to_text(choose_plan(problem(Dtype::kBF16, 1000, 512), kH200)),
            "generic 128x64x32 stages 4 threads 128 aligned shared 49152 tiles 120 blocks 120");
}

}  // namespace
}  // namespace troupe
