#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "troupe/core/number/e4m3.h"
#include "troupe/kernels/device/build_code.h"
#include "troupe/kernels/fp8/fp8.h"
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/testing/matrix.h"
#include "troupe/testing/routed_rows.h"

namespace troupe {
namespace {

using testing::Buffer;
using testing::expect_near_in_norm;
using testing::Matrix;
using testing::RoutedRows;

struct Shape {
  const char* name;
  int64_t T, D, F, E, K;
  double masked = 0;
  bool one_expert = false;
};

// 384: a column tile of 256 and half of one.
constexpr Shape kShapes[] = {{"one_token", 1, 128, 128, 1, 1},
                             {"no_token", 0, 128, 128, 3, 2},
                             {"tile_edges", 129, 256, 128, 2, 1},
                             {"odd_halves", 100, 384, 384, 3, 2},
                             {"empty_experts", 70, 128, 256, 40, 1},
                             {"masked", 120, 256, 384, 8, 4, 0.3},
                             {"all_to_one", 300, 128, 128, 5, 2, 0, true},
                             {"rests", 260, 128, 128, 3, 1},
                             {"two_rests", 460, 128, 128, 2, 1}};

// Bytes and scales that one path writes and the next reads.
struct Bytes {
  Bytes(int64_t r, int64_t c, int64_t scales_of)
      : rows(r), cols(c), bytes(r * c + 1), scales(scales_of + kScalesBehind) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = 0x7f;
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = NAN;
  }
  Mat<uint8_t> mut() { return {bytes.data(), rows, cols, cols}; }
  Mat<const uint8_t> view() { return {bytes.data(), rows, cols, cols}; }
  double at(int64_t r, int64_t c) { return E4M3::widen(bytes[r * cols + c]); }

  int64_t rows, cols;
  Buffer<uint8_t> bytes;
  Buffer<float> scales;
};

constexpr auto kOnCpu = [](const auto& args, auto ref, auto) { ref(args); };

// All tensors of one layer, forward and backward.
struct Layer {
  explicit Layer(const Shape& z)
      : s(z),
        rows({.tokens = s.T,
              .choices = s.K,
              .experts = s.E,
              .spare_rows = 3,
              .masked = s.masked,
              .all_to_first = s.one_expert}),
        plan(rows.read<PlanRef>()),
        blocks(fp8_row_blocks(plan.rows, s.E)),
        score(Dtype::kF32, s.T, s.K),
        x(s.T, s.D, s.T),
        grad_out(s.T, s.D, s.T),
        w1(s.E * 2 * s.F, s.D, s.E * 2 * s.F * s.D / 16384),
        w2(s.E * s.D, s.F, s.E * s.F * s.D / 16384),
        w1t(s.E * s.D, 2 * s.F, 0),
        w2t(s.E * s.F, s.D, 0),
        a(plan.rows, s.F, plan.rows * s.F / 128),
        grad_h8(plan.rows, 2 * s.F, plan.rows * s.F / 64),
        grad_h_columns(2 * s.F, blocks * 128, blocks * s.F / 64),
        a_columns(s.F, blocks * 128, blocks * s.F / 128),
        h(Dtype::kBF16, plan.rows, 2 * s.F),
        y(Dtype::kBF16, plan.rows, s.D),
        grad_h(Dtype::kBF16, plan.rows, 2 * s.F),
        again(Dtype::kBF16, plan.rows, s.F),
        grad_score(Dtype::kF32, s.T, s.K),
        grad_rows(Dtype::kBF16, plan.rows, s.D),
        grad_w1(Dtype::kBF16, s.E * 2 * s.F, s.D),
        grad_w2(Dtype::kBF16, s.E * s.D, s.F) {
    score.each([&](int64_t t, int64_t k) { score.set(t, k, 0.1 + 0.01 * ((t * 7 + k * 3) % 50)); });
    round_tokens(x, 1), round_tokens(grad_out, 2);
    round_weight(w1, w1t, 2 * s.F, 3), round_weight(w2, w2t, s.D, 4);
    for (Matrix* m : outputs()) m->fill(NAN);
  }

  static void round_tokens(Bytes& to, unsigned seed) {
    Matrix m(Dtype::kBF16, to.rows, to.cols);
    m.fill_normal(seed, 0.5);
    quantize_fp8_ref({.x = m.view(),
                      .groups = {},
                      .bytes = to.mut(),
                      .scales = {to.scales.data(), to.rows, 1, 1}});
  }
  static void round_weight(Bytes& to, Bytes& turned, int64_t matrix_rows, unsigned seed) {
    Matrix m(Dtype::kBF16, to.rows, to.cols);
    m.fill_normal(seed, 0.1);
    fp8_weight_tiles_ref({m.view(), matrix_rows, to.mut(), turned.bytes.data(), to.scales.data()});
  }
  // dH and A in 8 bits, as the kernels of the weights' gradients and of dXt read them.
  void round_rows() {
    if (plan.rows == 0) return;
    fp8_row_tiles_ref({.x = grad_h.view(),
                       .expert_offset = plan.expert_offset,
                       .experts = plan.experts,
                       .row_src = plan.row_src,
                       .factor = x.scales.data(),
                       .rows = grad_h8.mut(),
                       .row_scales = grad_h8.scales.data(),
                       .columns = grad_h_columns.bytes.data(),
                       .block_scales = grad_h_columns.scales.data()});
    fp8_row_tiles_ref({.x = again.view(),
                       .expert_offset = plan.expert_offset,
                       .experts = plan.experts,
                       .row_src = plan.row_src,
                       .factor = grad_out.scales.data(),
                       .columns = a_columns.bytes.data(),
                       .block_scales = a_columns.scales.data()});
  }
  std::vector<Matrix*> outputs() {
    return {&h, &y, &grad_h, &again, &grad_score, &grad_rows, &grad_w1, &grad_w2};
  }
  std::vector<Bytes*> tiles() { return {&grad_h8, &grad_h_columns, &a_columns}; }

  // dH and A in 8 bits by the one product, from what `from` has.
  void run_hidden_tiles(Layer& from, int waves = 1) {
    MoeHiddenTilesFp8Sm90 args{.plan = plan,
                               .grad_out = grad_out.view(),
                               .grad_out_scales = grad_out.scales.data(),
                               .x_scales = x.scales.data(),
                               .w2t = w2t.view(),
                               .w2_scales = w2.scales.data(),
                               .h = from.h.view(),
                               .score = static_cast<const float*>(score.view().data),
                               .grad_h = grad_h8.mut(),
                               .grad_h_scales = grad_h8.scales.data(),
                               .grad_h_columns = grad_h_columns.mut(),
                               .grad_h_column_scales = grad_h_columns.scales.data(),
                               .a_columns = a_columns.mut(),
                               .a_column_scales = a_columns.scales.data(),
                               .grad_score = static_cast<float*>(grad_score.mut().data),
                               .waves = waves};
    Buffer<char> workspace(workspace_bytes(args) + 1);
    args.workspace = workspace.data();
    if (!runs_sm90_code()) return moe_hidden_tiles_fp8_sm90_ref(args);
#ifdef TROUPE_CUDA
    testing::replay([&] { moe_hidden_tiles_fp8_sm90_cuda(args, /*stream=*/nullptr); },
                    /*busy=*/true);
#endif
  }

  // Each kernel reads what `from` has, and writes here.
  template <class Run>
  void run(Layer& from, const Run& go) {
    const auto* p = static_cast<const float*>(score.view().data);
    go(MoeUpFp8Sm90{plan, x.view(), x.scales.data(), w1.view(), w1.scales.data(), p, h.mut(),
                    a.mut(), a.scales.data()},
       moe_up_fp8_sm90_ref, TROUPE_CUDA_PATH(moe_up_fp8_sm90_cuda));
    go(MoeDownFp8Sm90{plan, from.a.view(), from.a.scales.data(), w2.view(), w2.scales.data(),
                      y.mut()},
       moe_down_fp8_sm90_ref, TROUPE_CUDA_PATH(moe_down_fp8_sm90_cuda));
    MoeHiddenGradFp8Sm90 hidden{plan,       grad_out.view(),  grad_out.scales.data(),
                                w2t.view(), w2.scales.data(), from.h.view(),
                                p,          grad_h.mut(),     again.mut()};
    hidden.grad_score = static_cast<float*>(grad_score.mut().data);
    Buffer<char> workspace(workspace_bytes(hidden) + 1);
    hidden.workspace = workspace.data();
    go(hidden, moe_hidden_grad_fp8_sm90_ref, TROUPE_CUDA_PATH(moe_hidden_grad_fp8_sm90_cuda));
    if (&from == this) round_rows();
    go(MoeRowsGradFp8Sm90{plan, from.grad_h8.view(), from.grad_h8.scales.data(), w1t.view(),
                          w1.scales.data(), grad_rows.mut()},
       moe_rows_grad_fp8_sm90_ref, TROUPE_CUDA_PATH(moe_rows_grad_fp8_sm90_cuda));
    go(MoeWeightGradFp8Sm90{plan, grad_out.view(), from.a_columns.view(),
                            from.a_columns.scales.data(), grad_w2.mut(), false},
       moe_weight_grad_fp8_sm90_ref, TROUPE_CUDA_PATH(moe_weight_grad_fp8_sm90_cuda));
    go(MoeWeightGradFp8Sm90{plan, x.view(), from.grad_h_columns.view(),
                            from.grad_h_columns.scales.data(), grad_w1.mut(), true},
       moe_weight_grad_fp8_sm90_ref, TROUPE_CUDA_PATH(moe_weight_grad_fp8_sm90_cuda));
  }
  // dH and A of the GPU in 8 bits, by passes over its bf16.
  void run_hidden_in_passes(Layer& from) {
    run_cuda(from);
    round_rows();
  }
  void run_ref() {
    run(*this, kOnCpu);
  }
  void run_cuda(Layer& from, [[maybe_unused]] int waves = 1) {
    run(from, [=]([[maybe_unused]] auto args, auto, [[maybe_unused]] auto cuda) {
#ifdef TROUPE_CUDA
      args.waves = waves;
      testing::replay([&] { cuda(args, /*stream=*/nullptr); }, /*busy=*/true);
#endif
    });
  }

  Shape s;
  RoutedRows rows;
  PlanRef plan;
  int64_t blocks;
  Matrix score;
  Bytes x, grad_out, w1, w2, w1t, w2t, a, grad_h8, grad_h_columns, a_columns;
  Matrix h, y, grad_h, again, grad_score, grad_rows, grad_w1, grad_w2;
};

class MoeFp8Sm90 : public ::testing::TestWithParam<Shape> {};

TEST_P(MoeFp8Sm90, Q8_KernelsAgreeWithTheReferenceAndWriteNothingElse) {
  if (!runs_sm90_code()) GTEST_SKIP() << "no GPU here that runs code for sm_90a";
  Layer got(GetParam()), want(GetParam());
  want.run_ref();
  got.run_cuda(want);
  expect_near_in_norm(got.h, want.h, 4e-3, "h");
  expect_near_in_norm(got.y, want.y, 4e-3, "y");
  expect_near_in_norm(got.grad_h, want.grad_h, 4e-3, "grad_h");
  expect_near_in_norm(got.again, want.again, 4e-3, "a of backward");
  expect_near_in_norm(got.grad_score, want.grad_score, 2e-3, "grad_score");
  expect_near_in_norm(got.grad_rows, want.grad_rows, 4e-3, "grad_rows");
  expect_near_in_norm(got.grad_w1, want.grad_w1, 4e-3, "grad_w1");
  expect_near_in_norm(got.grad_w2, want.grad_w2, 4e-3, "grad_w2");
  // A byte may be one step from the reference's where H was rounded the other way.
  double apart = 0, size = 0;
  for (int64_t r = 0; r < got.rows.true_rows(); ++r) {
    for (int64_t c = 0; c < got.s.F; ++c) {
      const int64_t at = c / 128 * got.plan.rows + r;
      const double g = got.a.at(r, c) * got.a.scales[at], w = want.a.at(r, c) * want.a.scales[at];
      apart += (g - w) * (g - w), size += w * w;
    }
  }
  EXPECT_LE(std::sqrt(apart), 0.01 * std::sqrt(size)) << "a";
}

TEST_P(MoeFp8Sm90, G4_TwoRunsAreTheSameBits) {
  if (!runs_sm90_code()) GTEST_SKIP() << "no GPU here that runs code for sm_90a";
  Layer one(GetParam()), two(GetParam()), from(GetParam());
  from.run_ref();
  one.run_cuda(from);
  two.run_cuda(from, /*waves=*/4);
  for (size_t i = 0; i < one.outputs().size(); ++i) {
    EXPECT_TRUE(one.outputs()[i]->same_bits(*two.outputs()[i])) << i;
  }
}

void expect_same_tiles(Layer& got, Layer& want) {
  for (size_t i = 0; i < got.tiles().size(); ++i) {
    Bytes &g = *got.tiles()[i], &w = *want.tiles()[i];
    int64_t bytes = 0, scales = 0;
    for (size_t j = 0; j < g.bytes.size(); ++j) bytes += g.bytes[j] != w.bytes[j];
    for (size_t j = 0; j < g.scales.size(); ++j) {
      scales += std::bit_cast<uint32_t>(g.scales[j]) != std::bit_cast<uint32_t>(w.scales[j]);
    }
    EXPECT_EQ(bytes, 0) << "bytes of tensor " << i << " of " << g.bytes.size();
    EXPECT_EQ(scales, 0) << "scales of tensor " << i << " of " << g.scales.size();
  }
}

// The product that rounds dH and A itself writes the bytes of passes over bf16, and nothing else:
// what both leave alone has one fill. With the GPU's bf16, which a test above compares.
TEST_P(MoeFp8Sm90, Q8_TheHiddenGradientsBytesAreThoseOfPassesOverBf16) {
  Layer from(GetParam()), on_gpu(GetParam());
  from.run_ref();
  Layer& passes = runs_sm90_code() ? on_gpu : from;
  if (runs_sm90_code()) on_gpu.run_hidden_in_passes(from);
  for (int waves = 1; waves <= (runs_sm90_code() ? 3 : 1); waves += 2) {
    Layer one(GetParam());
    one.run_hidden_tiles(from, waves);
    expect_same_tiles(one, passes);
    EXPECT_TRUE(one.grad_score.same_bits(passes.grad_score)) << "gradient of the scores, " << waves;
  }
}

// A NaN of one token makes the groups that it is in NaN, and no row that does not exist.
TEST(MoeFp8Sm90Nan, E9_TilesOfTheHiddenGradientAreNanWhereTheirRowsAre) {
  const Shape s{"nan_tiles", 200, 128, 128, 6, 2};
  Layer from(s), on_gpu(s), one(s);
  constexpr int64_t kBad = 77;
  for (Layer* l : {&from, &on_gpu, &one}) {
    l->grad_out.scales[kBad] = NAN;
    for (int64_t c = 0; c < s.D; ++c) l->grad_out.bytes[kBad * s.D + c] = 0x7f;
  }
  from.run_ref();
  if (runs_sm90_code()) on_gpu.run_hidden_in_passes(from);
  one.run_hidden_tiles(from);
  expect_same_tiles(one, runs_sm90_code() ? on_gpu : from);
}

// Bytes times scales are bf16 numbers: in them, the formulas of moe_sm90.h give the same bits.
TEST_P(MoeFp8Sm90, Q8_TheReferenceIsMoeSm90OfTheDequantizedOperands) {
  const Shape& s = GetParam();
  Layer l(s);
  l.run_ref();
  const auto wide = [](Bytes& q, const auto& scale) {
    Matrix m(Dtype::kBF16, q.rows, q.cols);
    m.each([&](int64_t r, int64_t c) { m.set(r, c, q.at(r, c) * scale(r, c)); });
    return m;
  };
  Matrix x = wide(l.x, [&](int64_t r, int64_t) { return l.x.scales[r]; });
  Matrix w1 = wide(
      l.w1, [&](int64_t r, int64_t c) { return l.w1.scales[r / 128 * (s.D / 128) + c / 128]; });
  Matrix w2 = wide(
      l.w2, [&](int64_t r, int64_t c) { return l.w2.scales[r / 128 * (s.F / 128) + c / 128]; });
  Matrix grad_out = wide(l.grad_out, [&](int64_t r, int64_t) { return l.grad_out.scales[r]; });
  Matrix h(Dtype::kBF16, l.plan.rows, 2 * s.F), a(Dtype::kBF16, l.plan.rows, s.F);
  for (Matrix* m : {&h, &a}) m->fill(NAN);
  const auto* p = static_cast<const float*>(l.score.view().data);
  moe_up_sm90_ref({l.plan, x.view(), w1.view(), p, h.mut(), a.mut()});
  expect_near_in_norm(l.h, h, 1e-6, "h");

  Matrix grad_h(Dtype::kBF16, l.plan.rows, 2 * s.F), again(Dtype::kBF16, l.plan.rows, s.F);
  Matrix grad_score(Dtype::kF32, s.T, s.K);
  for (Matrix* m : {&grad_h, &again}) m->fill(NAN);
  char none = 0;
  moe_hidden_grad_sm90_ref({l.plan, grad_out.view(), w2.view(), l.h.view(), p, grad_h.mut(),
                            again.mut(), static_cast<float*>(grad_score.mut().data), &none});
  expect_near_in_norm(l.grad_h, grad_h, 1e-6, "grad_h");
  expect_near_in_norm(l.grad_score, grad_score, 1e-6, "grad_score");
}

// The gradient of W1, from the bytes that took up the tokens' scales, is near that of unrounded
// rows.
TEST_P(MoeFp8Sm90, Q8_WeightGradientsAreThoseOfTheRowsWithinTheirRounding) {
  const Shape& s = GetParam();
  Layer l(s);
  l.run_ref();
  if (l.rows.true_rows() < 64) GTEST_SKIP() << "too few rows for a mean error";
  Matrix x(Dtype::kBF16, s.T, s.D), want(Dtype::kF32, s.E * 2 * s.F, s.D);
  x.each([&](int64_t r, int64_t c) { x.set(r, c, l.x.at(r, c) * l.x.scales[r]); });
  moe_up_grad_sm90_ref({l.plan, x.view(), l.grad_h.view(), want.mut(), false});
  expect_near_in_norm(l.grad_w1, want, 0.04, "grad_w1");
}

TEST_P(MoeFp8Sm90, E2_AnExpertWithoutRowsGetsAGradientOfExactlyZero) {
  Layer from(GetParam()), layer(GetParam());
  from.run_ref();
  runs_sm90_code() ? layer.run_cuda(from) : layer.run_ref();
  for (int64_t e = 0; e < GetParam().E; ++e) {
    if (layer.rows.counts[e] != 0) continue;
    for (int64_t i = 0; i < 2 * GetParam().F; ++i) {
      ASSERT_EQ(layer.grad_w1.get(e * 2 * GetParam().F + i, i % GetParam().D), 0) << e;
    }
  }
}

// E9: a token that is NaN reaches its own rows and its experts' gradients alone.
TEST(MoeFp8Sm90Nan, E9_ReachesItsTokenAndItsExpertsAlone) {
  const Shape s{"nan", 200, 256, 128, 6, 2};
  Layer from(s), layer(s);
  constexpr int64_t kBad = 77;
  for (Layer* l : {&from, &layer}) {
    l->x.scales[kBad] = NAN;
    for (int64_t c = 0; c < s.D; ++c) l->x.bytes[kBad * s.D + c] = 0x7f;
  }
  from.run_ref();
  runs_sm90_code() ? layer.run_cuda(from) : layer.run_ref();
  std::vector<bool> hit(s.E);
  for (int64_t e = 0; e < s.E; ++e) {
    for (int64_t r = layer.plan.expert_offset[e]; r < layer.plan.expert_offset[e + 1]; ++r) {
      const bool bad = layer.plan.row_src[r] == kBad;
      hit[e] = hit[e] || bad;
      ASSERT_EQ(std::isnan(layer.h.get(r, 3)), bad) << r;
      ASSERT_EQ(std::isnan(layer.y.get(r, 3)), bad) << r;
      ASSERT_EQ(std::isnan(layer.grad_rows.get(r, 3)), bad) << r;
    }
  }
  for (int64_t e = 0; e < s.E; ++e) {
    ASSERT_EQ(std::isnan(layer.grad_w1.get(e * 2 * s.F + 1, 5)), hit[e]) << e;
    ASSERT_EQ(std::isnan(layer.grad_w2.get(e * s.D + 1, 5)), hit[e]) << e;
  }
}

// Y = X W^T of one matrix W with a scale for each row of X, dX and dW, are near the same products of
// the dequantized operands, computed in double. N = 384 is an odd number of groups of 128.
TEST(MoeFp8Sm90Dense, Q8_18_AProductOfOneMatrixAndItsGradientsAreThoseOfTheBytes) {
  const int64_t T = 260, K = 256, N = 384;
  RoutedRows rows({.tokens = T, .choices = 1, .experts = 1});
  const PlanRef plan = rows.read<PlanRef>();
  const int64_t blocks = fp8_row_blocks(plan.rows, 1);
  Bytes x(T, K, T), w(N, K, N * K / 16384), wt(K, N, 0), g(plan.rows, N, plan.rows * N / 128);
  Bytes columns(N, blocks * 128, blocks * N / 128);
  Layer::round_tokens(x, 5), Layer::round_weight(w, wt, N, 6);
  Matrix grad(Dtype::kBF16, plan.rows, N);
  grad.fill_normal(7, 0.3);
  fp8_row_tiles_ref({.x = grad.view(),
                     .expert_offset = plan.expert_offset,
                     .experts = 1,
                     .row_src = plan.row_src,
                     .factor = x.scales.data(),
                     .rows = g.mut(),
                     .row_scales = g.scales.data(),
                     .columns = columns.bytes.data(),
                     .block_scales = columns.scales.data()});
  Matrix y(Dtype::kBF16, T, N), dx(Dtype::kBF16, T, K), dw(Dtype::kBF16, N, K);
  const auto go = [&]([[maybe_unused]] auto args, auto ref, [[maybe_unused]] auto cuda) {
    if (!runs_sm90_code()) return ref(args);
#ifdef TROUPE_CUDA
    testing::replay([&] { cuda(args, /*stream=*/nullptr); }, /*busy=*/true);
#endif
  };
  go(MoeDownFp8Sm90{.plan = plan,
                    .a = x.view(),
                    .a_scales = x.scales.data(),
                    .w2 = w.view(),
                    .w2_scales = w.scales.data(),
                    .y = y.mut(),
                    .whole_rows = true},
     moe_down_fp8_sm90_ref, TROUPE_CUDA_PATH(moe_down_fp8_sm90_cuda));
  go(MoeRowsGradFp8Sm90{plan, g.view(), g.scales.data(), wt.view(), w.scales.data(), dx.mut()},
     moe_rows_grad_fp8_sm90_ref, TROUPE_CUDA_PATH(moe_rows_grad_fp8_sm90_cuda));
  go(MoeWeightGradFp8Sm90{plan, x.view(), columns.view(), columns.scales.data(), dw.mut(), true},
     moe_weight_grad_fp8_sm90_ref, TROUPE_CUDA_PATH(moe_weight_grad_fp8_sm90_cuda));

  const auto weight = [&](int64_t n, int64_t k) {
    return w.at(n, k) * w.scales[n / 128 * (K / 128) + k / 128];
  };
  const auto sum = [](int64_t n, const auto& f) {
    double out = 0;
    for (int64_t i = 0; i < n; ++i) out += f(i);
    return out;
  };
  Matrix want_y(Dtype::kF32, T, N), want_dx(Dtype::kF32, T, K), want_dw(Dtype::kF32, N, K);
  want_y.each([&](int64_t t, int64_t n) {
    want_y.set(t, n, sum(K, [&](int64_t k) { return x.at(t, k) * x.scales[t] * weight(n, k); }));
  });
  want_dx.each([&](int64_t t, int64_t k) {
    want_dx.set(t, k, sum(N, [&](int64_t n) {
                  return g.at(t, n) * g.scales[n / 128 * plan.rows + t] * weight(n, k);
                }));
  });
  want_dw.each([&](int64_t n, int64_t k) {
    want_dw.set(n, k,
                sum(blocks * 128, [&](int64_t p) {  // p: a place of `columns`, not the row's number
                  const int64_t t = p / 128 * 128 + fragment_order(p % 128);
                  const double scale = columns.scales[p / 128 * (N / 128) + n / 128];
                  return t < T ? columns.at(n, p) * scale * x.at(t, k) : 0.0;
                }));
  });
  expect_near_in_norm(y, want_y, 4e-3, "y");
  expect_near_in_norm(dx, want_dx, 4e-3, "dx");
  expect_near_in_norm(dw, want_dw, 4e-3, "dw");
}

INSTANTIATE_TEST_SUITE_P(All, MoeFp8Sm90, ::testing::ValuesIn(kShapes),
                         [](const auto& test) { return test.param.name; });

TEST(MoeFp8Sm90Layout, RefusesWidthsThatAreNotMultiplesOf128) {
  Layer l(kShapes[0]);
  Bytes narrow(1, 64, 1), w1(256, 64, 1);
  EXPECT_THROW(
      moe_up_fp8_sm90_ref({l.plan, narrow.view(), narrow.scales.data(), w1.view(), w1.scales.data(),
                           nullptr, l.h.mut(), l.a.mut(), l.a.scales.data()}),
      Error);
}

}  // namespace
}  // namespace troupe
