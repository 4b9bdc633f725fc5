#include "troupe/kernels/block_sparse/block_sparse.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "troupe/kernels/device/build_code.h"
#include "troupe/kernels/grouped_gemm/grouped_gemm.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

constexpr double kGuard = -7;
constexpr int kSpareBlocks = 2;  // of the host's bound, past the last stored block

struct Shape {
  int block_rows, block_cols, third;  // third: the size that S does not have
  double density;
  int block = 128;
};

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

// Which blocks are stored, at random; column 0 is empty where there are several.
std::vector<char> random_mask(const Shape& s) {
  std::mt19937 rng(11);
  std::bernoulli_distribution stored(s.density);
  std::vector<char> mask(s.block_rows * s.block_cols);
  for (int i = 0; i < s.block_rows; ++i) {
    for (int j = 0; j < s.block_cols; ++j) {
      mask[i * s.block_cols + j] = stored(rng) && (j > 0 || s.block_cols == 1);
    }
  }
  return mask;
}

// The topology of a mask, with spare entries that nobody may follow.
struct Sparse {
  Sparse(const Shape& s, const std::vector<char>& mask)
      : shape(s),
        bound(std::count(mask.begin(), mask.end(), 1) + kSpareBlocks),
        row_offsets(s.block_rows + 1),
        col_indices(bound),
        col_offsets(s.block_cols + 1),
        row_indices(bound),
        block_order(bound) {
    for (int64_t i = 0; i < bound; ++i) col_indices[i] = row_indices[i] = block_order[i] = -1;
    std::vector<int> position(mask.size());
    int p = 0;
    for (int i = 0; i < s.block_rows; ++i) {
      row_offsets[i] = p;
      for (int j = 0; j < s.block_cols; ++j) {
        if (!mask[i * s.block_cols + j]) continue;
        position[i * s.block_cols + j] = p;
        col_indices[p++] = j;
      }
    }
    row_offsets[s.block_rows] = p;
    int q = 0;
    for (int j = 0; j < s.block_cols; ++j) {
      col_offsets[j] = q;
      for (int i = 0; i < s.block_rows; ++i) {
        if (!mask[i * s.block_cols + j]) continue;
        row_indices[q] = i;
        block_order[q++] = position[i * s.block_cols + j];
      }
    }
    col_offsets[s.block_cols] = q;
  }
  BlockTopology view() {
    return {.rows = int64_t{shape.block_rows} * shape.block,
            .cols = int64_t{shape.block_cols} * shape.block,
            .blocks = bound,
            .block = shape.block,
            .row_offsets = row_offsets.data(),
            .col_indices = col_indices.data(),
            .col_offsets = col_offsets.data(),
            .row_indices = row_indices.data(),
            .block_order = block_order.data()};
  }
  int64_t stored() { return row_offsets[shape.block_rows]; }

  Shape shape;
  int64_t bound;
  Buffer<int32_t> row_offsets, col_indices, col_offsets, row_indices, block_order;
};

DenseOperand operand(Matrix& m, bool transpose) {
  return {m.view(), transpose};
}
Matrix dense(Dtype dtype, int64_t rows, int64_t cols, bool transpose, unsigned seed) {
  Matrix m(dtype, transpose ? cols : rows, transpose ? rows : cols, 8);
  m.fill_normal(seed);
  return m;
}

// All three products of one topology, for one pair of transposes.
struct Problem {
  Problem(const Case& c, bool ta, bool tb)
      : Problem(c.shape, c.dtype, random_mask(c.shape), ta, tb) {}
  Problem(const Shape& s, Dtype dtype, const std::vector<char>& mask, bool ta, bool tb)
      : shape(s),
        transpose_a(ta),
        transpose_b(tb),
        sparse(s, mask),
        rows(int64_t{s.block_rows} * s.block),
        cols(int64_t{s.block_cols} * s.block),
        values(dtype, sparse.bound * s.block, s.block),
        sdd_a(dense(dtype, rows, s.third, ta, 1)),
        sdd_b(dense(dtype, s.third, cols, tb, 2)),
        sdd_c(dtype, sparse.bound * s.block, s.block),
        dsd_b(dense(dtype, ta ? rows : cols, s.third, tb, 3)),
        dsd_c(dtype, ta ? cols : rows, s.third, 8),
        dds_a(dense(dtype, s.third, tb ? cols : rows, ta, 4)),
        dds_c(dtype, s.third, tb ? rows : cols, 8) {
    values.fill_normal(5);
    sdd_c.fill(kGuard);
    dsd_c.fill(kGuard);
    dds_c.fill(kGuard);
  }
  BlockSdd sdd() {
    return {.a = operand(sdd_a, transpose_a),
            .b = operand(sdd_b, transpose_b),
            .topology = sparse.view(),
            .c = sdd_c.mut()};
  }
  BlockDsd dsd() {
    return {.a = values.view(),
            .topology = sparse.view(),
            .transpose_a = transpose_a,
            .b = operand(dsd_b, transpose_b),
            .c = dsd_c.mut()};
  }
  BlockDds dds() {
    return {.a = operand(dds_a, transpose_a),
            .b = values.view(),
            .topology = sparse.view(),
            .transpose_b = transpose_b,
            .c = dds_c.mut()};
  }
  void run_ref() {
    block_sdd_ref(sdd());
    block_dsd_ref(dsd());
    block_dds_ref(dds());
  }
  void run(Backend backend, bool generic = false) {
    const auto go = [&](auto args, auto cpu, auto cuda) {
      args.generic = generic;
      testing::run(backend, args, cpu, cuda);
    };
    go(sdd(), block_sdd_cpu, TROUPE_CUDA_PATH(block_sdd_cuda));
    go(dsd(), block_dsd_cpu, TROUPE_CUDA_PATH(block_dsd_cuda));
    go(dds(), block_dds_cpu, TROUPE_CUDA_PATH(block_dds_cuda));
  }

  Shape shape;
  bool transpose_a, transpose_b;
  Sparse sparse;
  int64_t rows, cols;
  Matrix values, sdd_a, sdd_b, sdd_c, dsd_b, dsd_c, dds_a, dds_c;
};

// Exact products summed in fp32 or better, rounded once: a sum near a tie may be an ulp away.
testing::Tolerance sum_tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return {1e-12, 1e-12};
    case Dtype::kF32: return {1e-6, 4e-6};
    case Dtype::kBF16: return {0x1p-7, 1e-5};
    default: return {0x1p-10, 1e-5};
  }
}

class BlockSparseTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
  Backend backend() const { return GetParam().backend; }
  template <class F>
  void each_transpose(F&& f) {
    for (bool ta : {false, true}) {
      for (bool tb : {false, true}) f(ta, tb);
    }
  }
  // By the kernels that run by default, and where those are Hopper's own by those of any GPU.
  std::vector<bool> kernels() const {
    const bool narrow = size_bytes(GetParam().dtype) == 2;
    if (backend() == Backend::kCuda && narrow && runs_sm90_code()) return {false, true};
    return {false};
  }
};

TEST_P(BlockSparseTest, AgreesWithTheReferenceForAllTransposes) {
  const testing::Tolerance bound = sum_tolerance(GetParam().dtype);
  each_transpose([&](bool ta, bool tb) {
    Problem want(GetParam(), ta, tb);
    want.run_ref();
    for (const bool generic : kernels()) {
      Problem got(GetParam(), ta, tb);
      got.run(backend(), generic);
      const std::string what =
          std::string(ta ? "T" : "N") + (tb ? "T" : "N") + (generic ? " generic" : "");
      testing::expect_near(got.sdd_c, want.sdd_c, bound, "sdd " + what);
      testing::expect_near(got.dsd_c, want.dsd_c, bound, "dsd " + what);
      testing::expect_near(got.dds_c, want.dds_c, bound, "dds " + what);
    }
  });
}

TEST_P(BlockSparseTest, WritesNoBlockPastTheLast) {
  for (const bool generic : kernels()) {
    Problem p(GetParam(), false, true);
    p.run(backend(), generic);
    for (int64_t r = p.sparse.stored() * p.shape.block; r < p.sdd_c.rows(); ++r) {
      for (int64_t c = 0; c < p.shape.block; ++c) ASSERT_EQ(p.sdd_c.get(r, c), kGuard);
    }
  }
}

TEST_P(BlockSparseTest, NanThatNoStoredBlockMeetsStaysOut) {
  if (GetParam().shape.block_cols == 1) GTEST_SKIP() << "no empty column";
  for (const bool generic : kernels()) {
    Problem clean(GetParam(), false, false), p(GetParam(), false, false);
    for (int64_t k = 0; k < p.shape.block; ++k) {
      for (int64_t n = 0; n < p.shape.third; ++n) p.dsd_b.set(k, n, NAN);
    }
    for (int64_t r = p.sparse.stored() * p.shape.block; r < p.values.rows(); ++r) {
      for (int64_t c = 0; c < p.shape.block; ++c) p.values.set(r, c, NAN);
    }
    clean.run(backend(), generic);
    p.run(backend(), generic);
    EXPECT_TRUE(p.dsd_c.same_bits(clean.dsd_c));
    EXPECT_TRUE(p.dds_c.same_bits(clean.dds_c));
  }
}

TEST_P(BlockSparseTest, G4_RunsAgainToTheSameBits) {
  for (const bool generic : kernels()) {
    Problem first(GetParam(), true, false), second(GetParam(), true, false);
    first.run(backend(), generic);
    second.run(backend() == Backend::kCpuThreads ? Backend::kCpu : backend(), generic);
    EXPECT_TRUE(first.sdd_c.same_bits(second.sdd_c));
    EXPECT_TRUE(first.dsd_c.same_bits(second.dsd_c));
    EXPECT_TRUE(first.dds_c.same_bits(second.dds_c));
  }
}

// Rows of expert e times its own columns: the block-diagonal matrix of MegaBlocks' MoE layer.
TEST_P(BlockSparseTest, X7_EqualsTheGroupedProductOnABlockDiagonal) {
  const Case c = GetParam();
  constexpr int kExperts = 3;
  const int counts[kExperts] = {1, 0, 2}, columns = 2;  // in blocks
  Shape s{.block_rows = 3,
          .block_cols = kExperts * columns,
          .third = c.shape.third,
          .density = 1,
          .block = c.shape.block};
  std::vector<char> mask(s.block_rows * s.block_cols);
  Buffer<int32_t> offset(kExperts + 1);
  for (int e = 0, row = 0; e < kExperts; ++e) {
    offset[e] = row * s.block;
    for (int i = 0; i < counts[e]; ++i, ++row) {
      for (int j = 0; j < columns; ++j) mask[row * s.block_cols + e * columns + j] = 1;
    }
    offset[e + 1] = row * s.block;
  }
  Problem p(s, c.dtype, mask, false, true);
  Matrix want(c.dtype, p.rows, columns * s.block);
  grouped_gemm_ref({.a = p.sdd_a.view(),
                    .b = p.sdd_b.view(),
                    .c = want.mut(),
                    .experts = kExperts,
                    .expert_offset = offset.data()});
  for (const bool generic : kernels()) {
    p.sdd_c.fill(kGuard);
    p.run(c.backend, generic);
    Matrix got(c.dtype, p.rows, columns * s.block);
    got.each([&](int64_t r, int64_t col) {
      const int64_t block = r / s.block * columns + col / s.block;
      got.set(r, col, p.sdd_c.get(block * s.block + r % s.block, col % s.block));
    });
    testing::expect_near(got, want, sum_tolerance(c.dtype));
  }
}

class BlockSparseEdge : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
};

// C's rows begin at multiples of 16 bytes, and end between two.
TEST_P(BlockSparseEdge, WritesNoColumnPastTheLast) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    const Shape s{.block_rows = 2, .block_cols = 2, .third = 13, .density = 1};
    for (const bool generic : {false, true}) {
      Problem p(s, dtype, {1, 0, 1, 1}, false, true);
      Matrix wide(dtype, p.rows, 16);
      wide.fill(kGuard);
      BlockDsd x = p.dsd();
      block_dsd_ref(x);
      x.c = wide.mut();
      x.c.cols = s.third;
      x.generic = generic;
      testing::run(GetParam(), x, block_dsd_cpu, TROUPE_CUDA_PATH(block_dsd_cuda));
      Matrix got(dtype, p.rows, s.third);
      got.each([&](int64_t r, int64_t c) { got.set(r, c, wide.get(r, c)); });
      testing::expect_near(got, p.dsd_c, sum_tolerance(dtype));
      for (int64_t r = 0; r < p.rows; ++r) {
        for (int64_t c = s.third; c < 16; ++c) ASSERT_EQ(wide.get(r, c), kGuard) << r << ", " << c;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlockSparseEdge,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

// A topology counts its blocks in 32 bits where STK counted them in 16.
TEST(BlockSparse, E11_TakesMoreBlocksThan32767) {
  const Shape s{.block_rows = 200, .block_cols = 190, .third = 3, .density = 1, .block = 1};
  const std::vector<char> mask(200 * 190, 1);
  Problem got(s, Dtype::kF32, mask, false, false), want(s, Dtype::kF32, mask, false, false);
  ASSERT_GT(got.sparse.stored(), 32767);
  got.run(Backend::kCpu);
  want.run_ref();
  testing::expect_near(got.sdd_c, want.sdd_c, sum_tolerance(Dtype::kF32));
  testing::expect_near(got.dsd_c, want.dsd_c, sum_tolerance(Dtype::kF32));
}

TEST(BlockSparse, ReferenceGivesTheNumbersOfAHandCalculation) {
  // S = [0 S0; S1 0] with blocks of one element: S0 = 2, S1 = 3.
  const Shape s{.block_rows = 2, .block_cols = 2, .third = 1, .density = 1, .block = 1};
  Problem p(s, Dtype::kF64, {0, 1, 1, 0}, false, false);
  p.values.set(0, 0, 2);
  p.values.set(1, 0, 3);
  const double a[] = {5, 7}, b[] = {11, 13};
  for (int i = 0; i < 2; ++i) {
    p.sdd_a.set(i, 0, a[i]);
    p.sdd_b.set(0, i, b[i]);
    p.dsd_b.set(i, 0, b[i]);
    p.dds_a.set(0, i, a[i]);
  }
  p.run_ref();
  EXPECT_EQ(p.sdd_c.get(0, 0), 5 * 13);
  EXPECT_EQ(p.sdd_c.get(1, 0), 7 * 11);
  EXPECT_EQ(p.dsd_c.get(0, 0), 2 * 13);
  EXPECT_EQ(p.dsd_c.get(1, 0), 3 * 11);
  EXPECT_EQ(p.dds_c.get(0, 0), 7 * 3);
  EXPECT_EQ(p.dds_c.get(0, 1), 5 * 2);
  EXPECT_EQ(flops(p.sdd(), 2), 2 * 2 * 1);
}

TEST(BlockSparse, RefusesBadArguments) {
  const Shape s{.block_rows = 2, .block_cols = 3, .third = 5, .density = 1, .block = 4};
  Problem p(s, Dtype::kF32, random_mask(s), false, false);
  const auto refuses_sdd = [&](auto change) {
    BlockSdd x = p.sdd();
    change(x);
    EXPECT_THROW(block_sdd_cpu(x, serial), Error);
    EXPECT_THROW(block_sdd_ref(x), Error);
  };
  refuses_sdd([](BlockSdd& x) { x.a.transpose = true; });
  refuses_sdd([](BlockSdd& x) { x.topology.block = 3; });
  refuses_sdd([](BlockSdd& x) { x.topology.row_offsets = nullptr; });
  refuses_sdd([](BlockSdd& x) { x.topology.block_order = nullptr; });
  refuses_sdd([](BlockSdd& x) { x.topology.blocks = int64_t{1} << 31; });
  refuses_sdd([](BlockSdd& x) { x.b.matrix.dtype = Dtype::kBF16; });
  refuses_sdd([](BlockSdd& x) { x.c.data = nullptr; });
  const auto refuses_dsd = [&](auto change) {
    BlockDsd x = p.dsd();
    change(x);
    EXPECT_THROW(block_dsd_cpu(x, serial), Error);
  };
  refuses_dsd([](BlockDsd& x) { x.transpose_a = true; });
  refuses_dsd([](BlockDsd& x) { x.c.cols -= 1; });
  refuses_dsd([](BlockDsd& x) { x.a.ld += 1; });
  const auto refuses_dds = [&](auto change) {
    BlockDds x = p.dds();
    change(x);
    EXPECT_THROW(block_dds_cpu(x, serial), Error);
  };
  refuses_dds([](BlockDds& x) { x.transpose_b = true; });
  refuses_dds([](BlockDds& x) { x.a.matrix.data = nullptr; });
  refuses_dds([](BlockDds& x) { x.c.rows += 1; });
}

TEST(BlockSparse, CudaRefusesWhatItHasNoKernelFor) {
  if (!testing::available(Backend::kCuda)) GTEST_SKIP() << "no GPU here";
#ifdef TROUPE_CUDA
  const Shape small{.block_rows = 1, .block_cols = 1, .third = 8, .density = 1, .block = 64};
  Problem p(small, Dtype::kF32, random_mask(small), false, false);
  EXPECT_THROW(block_sdd_cuda(p.sdd(), nullptr), Error);
  const Shape odd{.block_rows = 1, .block_cols = 1, .third = 9, .density = 1};
  Problem q(odd, Dtype::kBF16, random_mask(odd), false, false);
  EXPECT_THROW(block_sdd_cuda(q.sdd(), nullptr), Error);
#endif
}

std::vector<Case> all_cases() {
  // Sizes in the style of STK's tests: dense, half, a quarter, nothing stored.
  const Shape gpu[] = {{1, 1, 128, 1.0}, {2, 2, 256, 0.5}, {3, 4, 200, 0.25},
                       {2, 3, 8, 1.0},   {2, 2, 136, 0.0}, {0, 2, 64, 1.0}};
  const Shape cpu[] = {{1, 1, 128, 1.0},   {2, 3, 40, 0.5},     {3, 4, 13, 0.25, 16},
                       {2, 3, 1, 1.0, 32}, {5, 7, 37, 0.5, 8},  {2, 2, 24, 0.0, 16},
                       {0, 2, 8, 1.0, 4},  {17, 13, 50, 0.3, 4}};
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF64}) {
      for (const Shape& s : cpu) cases.push_back({b, d, s});
    }
  }
  for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    for (const Shape& s : gpu) cases.push_back({Backend::kCuda, d, s});
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, s] = info.param;
  return std::string(name(backend)) + "_" + name(dtype) + "_" + std::to_string(s.block_rows) + "x" +
         std::to_string(s.block_cols) + "_n" + std::to_string(s.third) + "_d" +
         std::to_string(static_cast<int>(100 * s.density)) + "_b" + std::to_string(s.block);
}
INSTANTIATE_TEST_SUITE_P(All, BlockSparseTest, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace troupe
