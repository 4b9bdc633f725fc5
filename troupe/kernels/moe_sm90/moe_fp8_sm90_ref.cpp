// The formulas of moe_fp8_sm90.h in double, with its rounding points.
#include <algorithm>
#include <vector>

#include "troupe/core/number/fp8_scale.h"
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"
#include "troupe/kernels/moe_sm90/ref_rows.h"

namespace troupe {
namespace {

double value(uint8_t byte) {
  return E4M3::widen(byte);
}

// sum over k of a[k] b[k] with the scale of k's group of 128: scale(k / 128)
template <class Scale>
double dot(const uint8_t* a, const uint8_t* b, int64_t K, const Scale& scale) {
  double sum = 0;
  for (int64_t k = 0; k < K; ++k) sum += value(a[k]) * value(b[k]) * scale(k / kFp8Tile);
  return sum;
}

}  // namespace

void moe_up_fp8_sm90_ref(const MoeUpFp8Sm90& x) {
  validate(x);
  const auto h = x.h.as<BF16>();
  const int64_t F = x.a.cols, D = x.x.cols, across = D / kFp8Tile;
  for_each_row(x.plan, [&](int64_t e, int64_t r) {
    const int64_t source = x.plan.row_src[r];
    const auto product = [&](int64_t row) {  // of W1's rows: gates, then ups
      if (source < 0) return 0.0;
      const float* scales = x.w1_scales + (e * 2 * F + row) / kFp8Tile * across;
      return x.x_scales[source] * dot(x.x.row(source), x.w1.row(e * 2 * F + row), D,
                                      [&](int64_t k) { return scales[k]; });
    };
    for (int64_t first = 0; first < F; first += kFp8Tile) {
      BF16 a[kFp8Tile];
      uint32_t top = 0;
      for (int64_t i = 0; i < kFp8Tile; ++i) {
        const int64_t u = first + i, c = hidden_column(u);
        h(r, c) = rounded(product(u)), h(r, c + 2) = rounded(product(F + u));
        const double g = static_cast<float>(h(r, c)), v = static_cast<float>(h(r, c + 2));
        a[i] = rounded(score_of(x.plan, x.score, r) * g * sigmoid(g) * v);
        top = std::max(top, std::bit_cast<uint32_t>(static_cast<float>(a[i])) & 0x7fffffffu);
      }
      const Fp8Scale scale = fp8_scale(top);
      x.a_scales[first / kFp8Tile * x.plan.rows + r] = scale.scale;
      for (int64_t i = 0; i < kFp8Tile; ++i) {
        x.a(r, first + i) = static_cast<uint8_t>(fp8_byte(static_cast<float>(a[i]), scale));
      }
    }
  });
}

void moe_down_fp8_sm90_ref(const MoeDownFp8Sm90& x) {
  validate(x);
  const auto y = x.y.as<BF16>();
  const int64_t F = x.a.cols, D = y.cols, next = x.whole_rows ? 0 : x.plan.rows;
  for_each_row(x.plan, [&](int64_t e, int64_t r) {
    for (int64_t d = 0; d < D; ++d) {
      const float* w = x.w2_scales + (e * D + d) / kFp8Tile * (F / kFp8Tile);
      y(r, d) = rounded(dot(x.a.row(r), x.w2.row(e * D + d), F,
                            [&](int64_t k) { return double{x.a_scales[k * next + r]} * w[k]; }));
    }
  });
}

void moe_hidden_grad_fp8_sm90_ref(const MoeHiddenGradFp8Sm90& x) {
  validate(x);
  const int64_t F = x.a.cols, D = x.grad_out.cols, across = F / kFp8Tile;
  hidden_grad_ref(x, [&](int64_t e, int64_t r, int64_t u) {
    const int64_t source = x.plan.row_src[r];
    if (source < 0) return 0.0;
    const float* w = x.w2_scales + e * D / kFp8Tile * across + u / kFp8Tile;
    return x.grad_out_scales[source] * dot(x.grad_out.row(source), x.w2t.row(e * F + u), D,
                                           [&](int64_t k) { return w[k * across]; });
  });
}

void moe_hidden_tiles_fp8_sm90_ref(const MoeHiddenTilesFp8Sm90& x) {
  validate(x);
  const int64_t F = x.h.cols / 2, R = x.plan.rows;
  std::vector<BF16> grad_h(R * 2 * F + 1), a(R * F + 1);
  MoeHiddenGradFp8Sm90 hidden{.plan = x.plan,
                              .grad_out = x.grad_out,
                              .grad_out_scales = x.grad_out_scales,
                              .w2t = x.w2t,
                              .w2_scales = x.w2_scales,
                              .h = x.h,
                              .score = x.score,
                              .grad_h = {grad_h.data(), Dtype::kBF16, R, 2 * F, 2 * F},
                              .a = {a.data(), Dtype::kBF16, R, F, F},
                              .grad_score = x.grad_score,
                              .workspace = x.workspace};
  moe_hidden_grad_fp8_sm90_ref(hidden);
  if (R == 0) return;
  fp8_row_tiles_ref({.x = {grad_h.data(), Dtype::kBF16, R, 2 * F, 2 * F},
                     .expert_offset = x.plan.expert_offset,
                     .experts = x.plan.experts,
                     .row_src = x.plan.row_src,
                     .factor = x.x_scales,
                     .rows = x.grad_h,
                     .row_scales = x.grad_h_scales,
                     .columns = x.grad_h_columns.data,
                     .block_scales = x.grad_h_column_scales});
  fp8_row_tiles_ref({.x = {a.data(), Dtype::kBF16, R, F, F},
                     .expert_offset = x.plan.expert_offset,
                     .experts = x.plan.experts,
                     .row_src = x.plan.row_src,
                     .factor = x.grad_out_scales,
                     .columns = x.a_columns.data,
                     .block_scales = x.a_column_scales});
}

void moe_rows_grad_fp8_sm90_ref(const MoeRowsGradFp8Sm90& x) {
  validate(x);
  const auto out = x.grad_rows.as<BF16>();
  const int64_t K = x.grad_h.cols, D = out.cols, R = x.plan.rows, across = D / kFp8Tile;
  for_each_row(x.plan, [&](int64_t e, int64_t r) {
    for (int64_t d = 0; d < D; ++d) {
      const float* w = x.w1_scales + e * (K / kFp8Tile) * across + d / kFp8Tile;
      out(r, d) = rounded(dot(x.grad_h.row(r), x.w1t.row(e * D + d), K, [&](int64_t k) {
        return double{x.grad_h_scales[k * R + r]} * w[k * across];
      }));
    }
  });
}

void moe_weight_grad_fp8_sm90_ref(const MoeWeightGradFp8Sm90& x) {
  validate(x);
  const auto grad = x.grad.as<BF16>();
  const int64_t M = x.rows.cols, N = x.columns.rows, across = N / kFp8Tile;
  for (int64_t e = 0; e < x.plan.experts; ++e) {
    const int64_t begin = x.plan.expert_offset[e], count = x.plan.expert_offset[e + 1] - begin;
    const int64_t block = begin / kFp8Tile + e;
    for (int64_t m = 0; m < M; ++m) {
      for (int64_t n = 0; n < N; ++n) {
        double sum = 0;
        for (int64_t p = 0; p < (count + kFp8Tile - 1) / kFp8Tile * kFp8Tile; ++p) {
          const int64_t r = fragment_order(p), source = r < count ? x.plan.row_src[begin + r] : -1;
          if (source < 0) continue;
          const int64_t at = block + p / kFp8Tile;
          sum += double{x.column_scales[at * across + n / kFp8Tile]} * value(x.rows(source, m)) *
                 value(x.columns(n, block * kFp8Tile + p));
        }
        (x.transposed ? grad(e * N + n, m) : grad(e * M + m, n)) = rounded(sum);
      }
    }
  }
}

}  // namespace troupe
