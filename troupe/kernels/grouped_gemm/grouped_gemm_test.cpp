#include "troupe/kernels/grouped_gemm/grouped_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "troupe/kernels/grouped_gemm/gemm_plan.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

constexpr double kGuard = -7;  // in every element that nobody may write

struct Shape {
  std::vector<int> counts;  // rows of each expert
  int n, k;
};

struct Case {
  Backend backend;  // kCpu stands for the reference
  Dtype dtype;
  Shape shape;
};

// What may be asked beside the bare product.
struct Extras {
  bool transpose_b = true, gather = false, bias = false, scales = false, accumulate = false;
  int pad = 8;  // of all rows: 8 keeps them aligned, 3 does not, 0 leaves no gap
  bool finite_pads = false;
};

// A result in a frame of guards: a row above and below, columns to the right, spare rows at the
// end.
struct Framed {
  Framed(Dtype dtype, int64_t rows_, int64_t cols_, int64_t pad)
      : rows(rows_), cols(cols_), whole(dtype, rows_ + 2, cols_ + pad) {
    whole.fill(kGuard);
  }
  MutRef mut() {
    MutRef v = whole.mut();
    v.data = static_cast<char*>(v.data) + v.ld * size_bytes(v.dtype);
    v.rows = rows;
    v.cols = cols;
    return v;
  }
  // The frame, and the rows from `true_rows` on, hold what they held.
  void expect_frame(int64_t true_rows) {
    int faults = 0;
    whole.each([&](int64_t r, int64_t c) {
      const bool inside = 1 <= r && r <= true_rows && c < cols;
      faults += !inside && whole.get(r, c) != kGuard;
    });
    EXPECT_EQ(faults, 0) << "elements outside the result were written";
  }
  int64_t rows, cols;
  Matrix whole;
};

std::vector<int32_t> offsets_of(const std::vector<int>& counts) {
  std::vector<int32_t> offsets(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  return offsets;
}

constexpr int kSpare = 5;    // rows past expert_offset[E], up to the host's bound
constexpr int kSources = 9;  // rows that are gathered, over and over

struct Rows {
  explicit Rows(const std::vector<int>& counts)
      : offset(counts.size() + 1),
        total(std::accumulate(counts.begin(), counts.end(), 0)),
        src(total + kSpare),
        slot(total + kSpare) {
    const std::vector<int32_t> offsets = offsets_of(counts);
    std::copy(offsets.begin(), offsets.end(), offset.data());
    for (int r = 0; r < total + kSpare; ++r) {
      src[r] = r % 7 == 3 ? -1 : (5 * r + 2) % kSources;
      slot[r] = r % 7 == 3 ? -1 : total + kSpare - 1 - r;
    }
  }
  Buffer<int32_t> offset;
  int total;
  Buffer<int32_t> src, slot;
};

struct Problem {
  Problem(const Shape& s, Dtype dtype, Extras x)
      : shape(s),
        extras(x),
        rows(s.counts),
        a(dtype, x.gather ? kSources : rows.total + kSpare, s.k, x.pad),
        b(dtype, experts() * (x.transpose_b ? s.n : s.k), x.transpose_b ? s.k : s.n, x.pad),
        bias(dtype, experts(), s.n),
        c(dtype, rows.total + kSpare, s.n, x.pad),
        scale(rows.total + kSpare),
        bias_scale(rows.total + kSpare) {
    a.fill_normal(1);
    b.fill_normal(2);
    bias.fill_normal(3);
    testing::fill_normal(scale, 4);
    testing::fill_normal(bias_scale, 5);
  }
  int64_t experts() const { return static_cast<int64_t>(shape.counts.size()); }
  GroupedGemm args() {
    GroupedGemm x{.a = a.view(),
                  .b = b.view(),
                  .c = c.mut(),
                  .experts = experts(),
                  .expert_offset = rows.offset.data(),
                  .row_src = extras.gather ? rows.src.data() : nullptr,
                  .transpose_b = extras.transpose_b,
                  .accumulate = extras.accumulate};
    if (extras.bias) x.bias = bias.view();
    if (!extras.scales) return x;
    x.scale = scale.data();
    x.bias_scale = bias_scale.data();
    x.row_slot = rows.slot.data();
    return x;
  }
  Shape shape;
  Extras extras;
  Rows rows;
  Matrix a, b, bias;
  Framed c;
  Buffer<float> scale, bias_scale;
};

// The same for the gradient of the weights: a is [R, M] with M = shape.k, b is [R, N].
struct WeightProblem {
  WeightProblem(const Shape& s, Dtype dtype, Dtype out, Extras x, bool gather_a_)
      : shape(s),
        extras(x),
        gather_a(gather_a_ && x.gather),
        gather_b(!gather_a_ && x.gather),
        rows(s.counts),
        a(dtype, gather_a ? kSources : rows.total + kSpare, s.k, x.pad),
        b(dtype, gather_b ? kSources : rows.total + kSpare, s.n, x.pad),
        c(out, experts() * s.k, s.n, x.pad) {
    a.fill_normal(1);
    b.fill_normal(2);
  }
  int64_t experts() const { return static_cast<int64_t>(shape.counts.size()); }
  GroupedGemmWeight args() {
    return {.a = a.view(),
            .b = b.view(),
            .c = c.mut(),
            .experts = experts(),
            .expert_offset = rows.offset.data(),
            .row_src = extras.gather ? rows.src.data() : nullptr,
            .gather_a = gather_a,
            .gather_b = gather_b,
            .finite_pads = extras.finite_pads,
            .accumulate = extras.accumulate};
  }
  Shape shape;
  Extras extras;
  bool gather_a, gather_b;
  Rows rows;
  Matrix a, b;
  Framed c;
};

void run(Backend backend, const GroupedGemm& args) {
  testing::run_reference(backend, args, grouped_gemm_ref, TROUPE_CUDA_PATH(grouped_gemm_cuda));
}
void run(Backend backend, const GroupedGemmWeight& args) {
  testing::run_reference(backend, args, grouped_gemm_weight_ref,
                         TROUPE_CUDA_PATH(grouped_gemm_weight_cuda));
}

// Both sum exact products in fp32 or better and round once: sums on both sides of a rounding
// boundary come out one place apart.
testing::Tolerance sum_tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16: return {0x1p-7, 1e-5};
    case Dtype::kF16: return {0x1p-10, 1e-5};
    default: return {1e-6, 2e-6};
  }
}

template <class P>
void expect_agreement(Backend backend, P& got, P& want) {
  run(Backend::kCpu, want.args());
  run(backend, got.args());
  testing::expect_near(got.c.whole, want.c.whole, sum_tolerance(got.c.whole.dtype()));
}

class GroupedGemmTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
  Backend backend() const { return GetParam().backend; }
  Problem problem(Extras x) const { return {GetParam().shape, GetParam().dtype, x}; }
  WeightProblem weight(Dtype out, Extras x, bool gather_a = false) const {
    return {GetParam().shape, GetParam().dtype, out, x, gather_a};
  }
};

constexpr Extras kExtras[] = {
    {},
    {.transpose_b = false},
    {.pad = 3},
    {.transpose_b = false, .pad = 3},
    {.gather = true, .bias = true, .scales = true},
    {.transpose_b = false, .gather = true, .accumulate = true},
    {.gather = true, .bias = true, .accumulate = true, .pad = 3},
    {.pad = 0},  // what Hopper's own kernels take, where widths are multiples of 64
    {.transpose_b = false, .pad = 0},
    {.gather = true, .pad = 0, .finite_pads = true},
    {.transpose_b = false, .gather = true, .pad = 0, .finite_pads = true},
    {.accumulate = true, .pad = 0},
};

TEST_P(GroupedGemmTest, AgreesWithTheReferenceAndWritesNothingElse) {
  for (const Extras& x : kExtras) {
    Problem got = problem(x), want = problem(x);
    expect_agreement(backend(), got, want);
    got.c.expect_frame(got.rows.total);
  }
}

TEST_P(GroupedGemmTest, WeightGradientAgreesWithTheReferenceAndWritesNothingElse) {
  for (const Extras& extras : kExtras) {
    for (Dtype out : {GetParam().dtype, Dtype::kF32}) {
      Extras x = extras;
      if (size_bytes(out) < 4) x.accumulate = false;
      const bool gather_a = x.transpose_b;
      WeightProblem got = weight(out, x, gather_a), want = weight(out, x, gather_a);
      expect_agreement(backend(), got, want);
      got.c.expect_frame(got.c.rows);
    }
  }
}

// Segments of 64 rows, which Hopper's kernels add in order; elsewhere sums are whole. An expert's
// bits are the same in any company.
TEST_P(GroupedGemmTest, WeightGradientInSegmentsAgreesWithTheReference) {
  for (const bool gather : {false, true}) {
    for (const Dtype out : {GetParam().dtype, Dtype::kF32}) {
      const Extras x{
          .gather = gather, .accumulate = out == Dtype::kF32, .pad = 0, .finite_pads = true};
      WeightProblem got = weight(out, x, gather), want = weight(out, x, gather);
      run(Backend::kCpu, want.args());
      GroupedGemmWeight args = got.args();
      args.segment_rows = 64;
      Buffer<char> workspace(workspace_bytes(args));
      args.workspace = workspace.data();
      run(backend(), args);
      testing::expect_near(got.c.whole, want.c.whole, sum_tolerance(got.c.whole.dtype()));
      got.c.expect_frame(got.c.rows);
    }
  }
}

TEST_P(GroupedGemmTest, G4_RunsAgainToTheSameBits) {
  for (const Extras& x : {Extras{.gather = true, .bias = true, .scales = true}, {.pad = 0}}) {
    Problem first = problem(x), second = problem(x);
    WeightProblem first_w = weight(Dtype::kF32, x), second_w = weight(Dtype::kF32, x);
    run(backend(), first.args());
    run(backend(), second.args());
    run(backend(), first_w.args());
    run(backend(), second_w.args());
    EXPECT_TRUE(first.c.whole.same_bits(second.c.whole));
    EXPECT_TRUE(first_w.c.whole.same_bits(second_w.c.whole));
  }
}

// Rows of the segments in `poisoned`, and all past the last segment, become NaN.
void poison(Matrix& x, Rows& rows, int expert) {
  x.each([&](int64_t r, int64_t c) {
    const bool hit = rows.offset[expert] <= r && r < rows.offset[expert + 1];
    if (hit || r >= rows.total) x.set(r, c, NAN);
  });
}

TEST_P(GroupedGemmTest, NanStaysWithItsExpert) {
  const int experts = static_cast<int>(GetParam().shape.counts.size());
  for (int pad : {8, 3, 0}) {
    Problem clean = problem({.pad = pad});
    run(backend(), clean.args());
    for (int e = 0; e < experts; ++e) {
      Problem p = problem({.pad = pad});
      poison(p.a, p.rows, e);
      for (int64_t n = 0; n < p.shape.n; ++n) p.b.set(e * p.shape.n + n, p.shape.k - 1, NAN);
      run(backend(), p.args());
      int faults = 0;
      p.c.whole.each([&](int64_t r, int64_t c) {
        const bool own = p.rows.offset[e] < r && r <= p.rows.offset[e + 1] && c < p.shape.n;
        const double got = p.c.whole.get(r, c);
        faults += own ? !std::isnan(got) : got != clean.c.whole.get(r, c);
      });
      EXPECT_EQ(faults, 0) << "expert " << e << " pad " << pad;
    }
  }
}

TEST_P(GroupedGemmTest, WeightGradientKeepsNanWithItsExpert) {
  const int experts = static_cast<int>(GetParam().shape.counts.size());
  for (int pad : {8, 3, 0}) {
    WeightProblem clean = weight(Dtype::kF32, {.pad = pad});
    run(backend(), clean.args());
    for (int e = 0; e < experts; ++e) {
      WeightProblem p = weight(Dtype::kF32, {.pad = pad});
      poison(p.a, p.rows, e);
      poison(p.b, p.rows, e);
      run(backend(), p.args());
      int faults = 0;
      p.c.whole.each([&](int64_t r, int64_t c) {
        const int64_t owner = (r - 1) / p.shape.k;
        const bool own = r > 0 && owner == e && c < p.shape.n && p.shape.counts[e] > 0;
        const double got = p.c.whole.get(r, c);
        faults += own ? !std::isnan(got) : got != clean.c.whole.get(r, c);
      });
      EXPECT_EQ(faults, 0) << "expert " << e << " pad " << pad;
    }
  }
}

TEST_P(GroupedGemmTest, PadsAddNothingWhateverTheOtherOperandHolds) {
  for (bool gather_a : {false, true}) {
    WeightProblem clean = weight(Dtype::kF32, {.gather = true}, gather_a);
    WeightProblem p = weight(Dtype::kF32, {.gather = true}, gather_a);
    Matrix& packed = gather_a ? p.b : p.a;
    packed.each([&](int64_t r, int64_t c) {
      if (p.rows.src[r] < 0) packed.set(r, c, NAN);
    });
    run(backend(), clean.args());
    run(backend(), p.args());
    EXPECT_TRUE(p.c.whole.same_bits(clean.c.whole));
  }
}

TEST_P(GroupedGemmTest, E2_AnExpertWithoutRowsHasZeroGradient) {
  WeightProblem p = weight(GetParam().dtype, {}), sum = weight(Dtype::kF32, {.accumulate = true});
  p.c.whole.fill(NAN);
  run(backend(), p.args());
  run(backend(), sum.args());
  for (int64_t row = 0; row < p.c.rows; ++row) {
    if (p.shape.counts[row / p.shape.k] > 0) continue;
    for (int64_t n = 0; n < p.c.cols; ++n) {
      ASSERT_EQ(p.c.whole.get(row + 1, n), 0);
      ASSERT_EQ(sum.c.whole.get(row + 1, n), kGuard);
    }
  }
}

// The bits of a row depend on its own operands alone: not on its place, nor on the other rows.
TEST_P(GroupedGemmTest, ARowIsTheSameInAnyCompany) {
  for (const Extras& x : {Extras{}, Extras{.pad = 0}}) {
    Problem all = problem(x);
    run(backend(), all.args());
    for (size_t e = 0; e < all.shape.counts.size(); ++e) {
      if (all.shape.counts[e] == 0) continue;
      Problem alone({{1}, all.shape.n, all.shape.k}, GetParam().dtype, x);
      const int64_t last = all.rows.offset[e + 1] - 1;
      for (int64_t k = 0; k < all.shape.k; ++k) alone.a.set(0, k, all.a.get(last, k));
      alone.b.each([&](int64_t n, int64_t k) {
        alone.b.set(n, k, all.b.get(static_cast<int64_t>(e) * all.shape.n + n, k));
      });
      run(backend(), alone.args());
      for (int64_t n = 0; n < all.shape.n; ++n) {
        ASSERT_EQ(alone.c.whole.get(1, n), all.c.whole.get(last + 1, n)) << "expert " << e;
      }
    }
  }
}

// Of the problem that the launcher sees.
template <class P>
std::span<const GemmTile> tiles_of(P& p, bool rows_are_routed) {
  const auto args = p.args();
  const auto aligned = [](const MatRef& x) { return x.ld * size_bytes(x.dtype) % 16 == 0; };
  return built_tiles({.dtype = args.a.dtype,
                      .experts = args.experts,
                      .rows = args.a.rows,
                      .rows_are_routed = rows_are_routed,
                      .cols = args.c.cols,
                      .aligned = aligned(args.a) && aligned(args.b)});
}

// The generic kernel by each tile that it was built with: agrees with the reference, writes nothing
// else, and has the bits of 128 columns and four stages. On a Hopper GPU too.
template <class P>
void expect_tiles_agree(P& want, P& first, const auto& make, bool rows_are_routed) {
  run(Backend::kCpu, want.args());
  auto args = first.args();
  args.tile = {128, 4};
  run(Backend::kCuda, args);
  testing::expect_near(first.c.whole, want.c.whole, sum_tolerance(first.c.whole.dtype()));
  for (const GemmTile tile : tiles_of(first, rows_are_routed)) {
    P got = make();
    args = got.args();
    args.tile = tile;
    run(Backend::kCuda, args);
    EXPECT_TRUE(got.c.whole.same_bits(first.c.whole))
        << tile.n << " columns, " << tile.stages << " stages";
  }
}

class GroupedGemmTiles : public GroupedGemmTest {};

TEST_P(GroupedGemmTiles, EveryTileAgreesWithTheReferenceInTheSameBits) {
  for (const Extras& x : kExtras) {
    const auto make = [&] { return problem(x); };
    Problem want = make(), first = make();
    expect_tiles_agree(want, first, make, true);
    first.c.expect_frame(first.rows.total);
  }
}

TEST_P(GroupedGemmTiles, EveryTileOfTheWeightGradientAgreesWithTheReferenceInTheSameBits) {
  for (const Extras& extras : kExtras) {
    for (Dtype out : {GetParam().dtype, Dtype::kF32}) {
      Extras x = extras;
      if (size_bytes(out) < 4) x.accumulate = false;
      const auto make = [&] { return weight(out, x, x.transpose_b); };
      WeightProblem want = make(), first = make();
      expect_tiles_agree(want, first, make, false);
      first.c.expect_frame(first.c.rows);
    }
  }
}

TEST_P(GroupedGemmTest, ZeroRowsWritesThoseFromTheFirstOn) {
  for (const int32_t first : {-3, 0, 2, 4, 9}) {
    Framed x(GetParam().dtype, 4, 5, 2);
    testing::Buffer<int32_t> from(1);
    from[0] = first;
    const ZeroRows args{x.mut(), from.data()};
    testing::run_reference(backend(), args, zero_rows_ref, TROUPE_CUDA_PATH(zero_rows_cuda));
    x.expect_frame(4);
    for (int r = 0; r < 4; ++r) {
      for (int c = 0; c < 5; ++c) EXPECT_EQ(x.whole.get(r + 1, c), r < first ? kGuard : 0);
    }
  }
}

// Small numbers, by hand: two experts of 1 and 2 rows, the last row a pad.
struct ByHand {
  ByHand() : p({{1, 2}, 2, 2}, Dtype::kF64, {.gather = true, .bias = true, .scales = true}) {
    const double a[] = {1, 2, 3, 4}, b[] = {1, 0, 0, 1, 1, 1, 2, -1}, bias[] = {10, 20, 30, 40};
    for (int i = 0; i < 4; ++i) p.a.set(i / 2, i % 2, a[i]);
    for (int i = 0; i < 8; ++i) p.b.set(i / 2, i % 2, b[i]);
    for (int i = 0; i < 4; ++i) p.bias.set(i / 2, i % 2, bias[i]);
    const int src[] = {1, 0, -1}, slot[] = {2, 0, -1};
    for (int r = 0; r < 3; ++r) p.rows.src[r] = src[r], p.rows.slot[r] = slot[r];
    for (int i = 0; i < 3; ++i) p.scale[i] = float(i + 1), p.bias_scale[i] = 0.5f;
  }
  Problem p;
};

TEST(GroupedGemm, ReferenceGivesTheNumbersOfAHandCalculation) {
  ByHand hand;
  grouped_gemm_ref(hand.p.args());
  // Row 0: a[1] = (3, 4), scale 3. Row 1: a[0] = (1, 2), scale 1. Row 2: a pad.
  const double want[] = {3 * 3 + 5, 3 * 4 + 10, 3 + 15, 0 + 20, 0, 0};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(hand.p.c.whole.get(1 + i / 2, i % 2), want[i]) << i;
}

TEST(GroupedGemm, ReferenceOfTheWeightGradientGivesTheNumbersOfAHandCalculation) {
  WeightProblem p({{2, 0, 1}, 1, 2}, Dtype::kF64, Dtype::kF64, {.accumulate = true}, false);
  const double a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 10, 100};
  for (int i = 0; i < 6; ++i) p.a.set(i / 2, i % 2, a[i]);
  for (int r = 0; r < 3; ++r) p.b.set(r, 0, b[r]);
  grouped_gemm_weight_ref(p.args());
  const double want[] = {31, 42, 0, 0, 500, 600};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(p.c.whole.get(1 + i, 0), want[i] + kGuard) << i;
}

template <class Args>
void expect_refused(Backend backend, const Args& args) {
  EXPECT_THROW(run(backend, args), Error);
}

TEST(GroupedGemm, RefusesBadArguments) {
  for (Backend backend : {Backend::kCpu, Backend::kCuda}) {
    if (!testing::available(backend)) continue;
    Problem p({{3, 4}, 8, 16}, Dtype::kF32, {});
    const auto broken = [&](auto change) {
      GroupedGemm x = p.args();
      change(x);
      expect_refused(backend, x);
    };
    broken([](GroupedGemm& x) { x.experts = 3; });
    broken([](GroupedGemm& x) { x.experts = 0; });
    broken([](GroupedGemm& x) { x.transpose_b = false; });
    broken([](GroupedGemm& x) { x.expert_offset = nullptr; });
    broken([](GroupedGemm& x) { x.a.data = nullptr; });
    broken([](GroupedGemm& x) { x.a.dtype = Dtype::kBF16; });
    broken([](GroupedGemm& x) { x.c.dtype = Dtype::kBF16; });
    broken([](GroupedGemm& x) { x.a.rows -= 1; });
    broken([](GroupedGemm& x) { x.a.cols -= 1; });
    broken([](GroupedGemm& x) { x.a.ld = x.a.cols - 1; });
    broken([](GroupedGemm& x) { x.c.rows = int64_t{1} << 31; });
    broken([](GroupedGemm& x) { x.bias = {x.b.data, x.b.dtype, 1, 8, 8}; });
  }
}

TEST(GroupedGemm, WeightGradientRefusesBadArguments) {
  for (Backend backend : {Backend::kCpu, Backend::kCuda}) {
    if (!testing::available(backend)) continue;
    WeightProblem p({{3, 4}, 8, 16}, Dtype::kBF16, Dtype::kBF16, {}, false);
    const auto broken = [&](auto change) {
      GroupedGemmWeight x = p.args();
      change(x);
      expect_refused(backend, x);
    };
    broken([](GroupedGemmWeight& x) { x.experts = 1; });
    broken([](GroupedGemmWeight& x) { x.gather_a = true; });
    broken([](GroupedGemmWeight& x) { x.accumulate = true; });
    broken([](GroupedGemmWeight& x) { x.b.dtype = Dtype::kF32; });
    broken([](GroupedGemmWeight& x) { x.c.dtype = Dtype::kF16; });
    broken([](GroupedGemmWeight& x) { x.b.rows -= 1; });
    broken([](GroupedGemmWeight& x) { x.c.cols += 1; });
    broken([](GroupedGemmWeight& x) { x.expert_offset = nullptr; });
    broken([](GroupedGemmWeight& x) { x.segment_rows = 100; });
  }
}

TEST(GroupedGemm, CudaRefusesDoubles) {
  if (!testing::available(Backend::kCuda)) GTEST_SKIP() << "no GPU here";
  Problem p({{3}, 8, 8}, Dtype::kF64, {});
  expect_refused(Backend::kCuda, p.args());
}

TEST(GroupedGemm, E1_NoRowsAtAll) {
  for (Backend backend : {Backend::kCpu, Backend::kCuda}) {
    if (!testing::available(backend)) continue;
    WeightProblem p({{0, 0}, 8, 8}, Dtype::kBF16, Dtype::kBF16, {}, false);
    GroupedGemmWeight x = p.args();
    x.a = {nullptr, Dtype::kBF16, 0, 8, 8};
    x.b = {nullptr, Dtype::kBF16, 0, 8, 8};
    for (const auto& [gather_a, gather_b] :
         {std::pair(false, false), {true, false}, {false, true}}) {
      x.gather_a = gather_a;
      x.gather_b = gather_b;
      p.c.whole.fill(1);
      run(backend, x);
      for (int64_t row = 0; row < 16; ++row) EXPECT_EQ(p.c.whole.get(row + 1, 0), 0);
    }
  }
}

TEST(GroupedGemm, CountsFlopsOfTheRowsThatAreThere) {
  Problem p({{3, 4}, 8, 16}, Dtype::kF32, {});
  EXPECT_EQ(flops(p.args(), 7), 2 * 7 * 8 * 16);
}

std::vector<Shape> shapes() {
  std::vector<Shape> all = {
      {{0}, 8, 8},
      {{1}, 1, 1},
      {{0, 1, 0, 2}, 3, 100},
      {{63, 64, 65}, 40, 72},
      {{127, 0, 128, 129}, 136, 33},
      {{0, 5, 300}, 256, 64},
      {{17, 129}, 520, 160},
      {{300, 0, 3}, 192, 128},
  };
  // K = E of many tiny experts: more than a warp looks up at once.
  all.push_back({std::vector<int>(70, 2), 24, 40});
  all.back().counts[33] = all.back().counts[69] = 0;
  return all;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
      for (const Shape& s : shapes()) {
        const bool quick = s.n * s.k < 8192 && d != Dtype::kF16;
        if (b == Backend::kCuda || quick) cases.push_back({b, d, s});
      }
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, s] = info.param;
  return std::string(backend == Backend::kCpu ? "ref" : "cuda") + "_" + name(dtype) + "_e" +
         std::to_string(s.counts.size()) + "_r" +
         std::to_string(std::accumulate(s.counts.begin(), s.counts.end(), 0)) + "_n" +
         std::to_string(s.n) + "_k" + std::to_string(s.k);
}
INSTANTIATE_TEST_SUITE_P(All, GroupedGemmTest, ::testing::ValuesIn(all_cases()), case_name);

// Widths whose rows are aligned with the pads of kExtras, below and above each tile's columns.
std::vector<Case> tile_cases() {
  std::vector<Case> cases;
  for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    for (const Shape& s : {Shape{{1}, 8, 8}, Shape{{127, 0, 128, 129}, 136, 40},
                           Shape{{0, 5, 300}, 256, 64}, Shape{{17, 129}, 328, 168}}) {
      cases.push_back({Backend::kCuda, d, s});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, GroupedGemmTiles, ::testing::ValuesIn(tile_cases()), case_name);

}  // namespace
}  // namespace troupe
