// The CPU path. A tile of c, kTileRows x kTileCols, lives in registers while one block of p goes
// by. Both operands are first laid out as the tile reads them:
//   a  panels of kTileRows rows, p by p    a block of at most kBlockRows rows, in the second cache
//   b  one panel of kTileCols columns      in the first cache, used by all panels of a
// The layout costs a pass over each operand and makes every read of the inner loop consecutive. For
// few columns of c that pass costs more than it saves: a is then read where it is.
#include <algorithm>
#include <cstring>

#include "troupe/core/number/round.h"
#include "troupe/kernels/cpu_gemm/cpu_gemm.h"

namespace troupe {
namespace {

// Twelve sums, two columns of b and one element of a: 15 of AVX2's 16 registers.
constexpr int64_t kTileRows = 6, kTileCols = 16, kLanes = 8;
constexpr int64_t kBlockRows = 516;  // 86 panels: the 512 rows of a task, and no second block
constexpr int64_t kInPlaceCols = 192, kInPlaceColsT = 64;  // of c, where a is read in place
constexpr int64_t kBlockSum = 320;  // of p at most: a panel of b takes 20 KiB of the first cache
// A panel of a ends in room for the lanes that the last store writes too far.
constexpr int64_t kSlack = kLanes;
static_assert((kBlockRows / kTileRows) * (kTileRows * kBlockSum + kSlack) + kTileCols * kBlockSum +
                  kTileCols <=
              kCpuGemmScratch);

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef float Loose __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

Vector load(const float* from) {
  return *reinterpret_cast<const Loose*>(from);
}
void store(float* to, Vector x) {
  *reinterpret_cast<Loose*>(to) = x;
}

const float* row(const GemmOperand& x, int64_t r) {
  return x.data + (x.rows == nullptr ? r : x.rows[r]) * x.ld;
}

// Equal parts of k, none over kBlockSum; a function of k alone.
int64_t sum_block(int64_t k) {
  return round_up(ceil_div(k, ceil_div(k, kBlockSum)), kLanes);
}

// x[i][j] becomes x[j][i].
void transpose(Vector (&x)[kLanes]) {
  Vector t[kLanes];
#pragma GCC unroll 4
  for (int i = 0; i < kLanes; i += 2) {
    t[i] = __builtin_shufflevector(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    t[i + 1] = __builtin_shufflevector(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 2
  for (int i = 0; i < kLanes; i += 4) {
    x[i] = __builtin_shufflevector(t[i], t[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    x[i + 1] = __builtin_shufflevector(t[i], t[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    x[i + 2] = __builtin_shufflevector(t[i + 1], t[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    x[i + 3] = __builtin_shufflevector(t[i + 1], t[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kLanes / 2; ++i) {
    t[i] = __builtin_shufflevector(x[i], x[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    t[i + 4] = __builtin_shufflevector(x[i], x[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; ++i) x[i] = t[i];
}

// to[p * kWidth + i] = from[i][p] for p < k and i < kWidth <= kLanes; the next kLanes - kWidth
// elements after the last are overwritten too.
template <int64_t kWidth>
void lay_across(const float* const* from, int64_t k, int64_t stride, float* to) {
  int64_t p = 0;
  for (; p + kLanes <= k; p += kLanes) {
    Vector x[kLanes] = {};
#pragma GCC unroll 8
    for (int64_t i = 0; i < kWidth; ++i) x[i] = load(from[i] + p);
    transpose(x);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kLanes; ++i) store(to + (p + i) * stride, x[i]);
  }
  for (; p < k; ++p) {
    for (int64_t i = 0; i < kWidth; ++i) to[p * stride + i] = from[i][p];
  }
}

// One row, `valid` of kWidth elements long, the rest as zeros.
template <int64_t kWidth>
void copy_row(const float* from, int64_t valid, float* to) {
  if (valid >= kWidth) {
    std::memcpy(to, from, kWidth * sizeof(float));
  } else {
    for (int64_t i = 0; i < kWidth; ++i) to[i] = i < valid ? from[i] : 0;
  }
}

// A block of a product: rows [i, i + m), sums over [p, p + k).
struct Block {
  int64_t i, m, p, k;
  int64_t panel() const { return kTileRows * k + kSlack; }
};

// Where a tile's elements a[i, p] are: in a panel, or in the operand itself.
struct Panel {
  const float* data;
  float at(int64_t i, int64_t p) const { return data[p * kTileRows + i]; }
};
struct Rows {
  const float* row[kTileRows];
  float at(int64_t i, int64_t p) const { return row[i][p]; }
};
struct Columns {
  const float* data;
  int64_t ld;
  float at(int64_t i, int64_t p) const { return data[p * ld + i]; }
};

// Past the last row: the last row again, and not stored.
Rows rows_at(const GemmOperand& a, const Block& block, int64_t i) {
  Rows rows;
  for (int64_t r = 0; r < kTileRows; ++r) {
    rows.row[r] = row(a, block.i + std::min(i + r, block.m - 1)) + block.p;
  }
  return rows;
}

void lay_out_a(const GemmOperand& a, const Block& b, float* to) {
  if (!a.t) {
    for (int64_t i = 0; i < b.m; i += kTileRows, to += b.panel()) {
      lay_across<kTileRows>(rows_at(a, b, i).row, b.k, kTileRows, to);
    }
    return;
  }
  for (int64_t p0 = 0; p0 < b.k; p0 += kLanes) {  // Few rows at a time: their lines stay in cache.
    const int64_t p1 = std::min(p0 + kLanes, b.k);
    float* panel = to;
    for (int64_t i = 0; i < b.m; i += kTileRows, panel += b.panel()) {
      for (int64_t p = p0; p < p1; ++p) {
        copy_row<kTileRows>(row(a, b.p + p) + b.i + i, b.m - i, panel + p * kTileRows);
      }
    }
  }
}

void lay_out_b(const GemmOperand& b, const Block& block, int64_t j, int64_t n, float* to) {
  if (!b.t) {
    for (int64_t p = 0; p < block.k; ++p) {
      copy_row<kTileCols>(row(b, block.p + p) + j, n - j, to + p * kTileCols);
    }
    return;
  }
  for (int64_t half = 0; half < kTileCols; half += kLanes) {
    const float* from[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) from[i] = row(b, std::min(j + half + i, n - 1)) + block.p;
    lay_across<kLanes>(from, block.k, kTileCols, to + half);
  }
}

// A tile of c: [kTileRows, kTileCols], rows ldc apart.
template <bool kAdd, class A>
void multiply_tile(const A a, const float* b, int64_t k, float* c, int64_t ldc) {
  constexpr int64_t kColumns = kTileCols / kLanes;
  Vector sum[kTileRows][kColumns];
#pragma GCC unroll 6
  for (int64_t i = 0; i < kTileRows; ++i) {
    sum[i][0] = sum[i][1] = Vector{};
    __builtin_prefetch(c + i * ldc);
    __builtin_prefetch(c + i * ldc + kTileCols - 1);
  }
  for (int64_t p = 0; p < k; ++p, b += kTileCols) {
    const Vector b0 = load(b), b1 = load(b + kLanes);
#pragma GCC unroll 6
    for (int64_t i = 0; i < kTileRows; ++i) {
      const float x = a.at(i, p);
      sum[i][0] += x * b0;
      sum[i][1] += x * b1;
    }
  }
#pragma GCC unroll 6
  for (int64_t i = 0; i < kTileRows; ++i, c += ldc) {
    store(c, kAdd ? load(c) + sum[i][0] : sum[i][0]);
    store(c + kLanes, kAdd ? load(c + kLanes) + sum[i][1] : sum[i][1]);
  }
}

// A tile at the edge: `m` x `n` of it are c's.
template <class A>
void multiply_edge(const A& a, const float* b, int64_t k, const CpuGemm& c, bool add) {
  float tile[kTileRows * kTileCols];
  multiply_tile<false>(a, b, k, tile, kTileCols);
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      float& to = c.c[i * c.ldc + j];
      to = add ? to + tile[i * kTileCols + j] : tile[i * kTileCols + j];
    }
  }
}

// The tiles of kTileCols columns of c, from j; panel_of(i) is what row i's tile reads of a.
template <class PanelOf>
void multiply_columns(const CpuGemm& x, const Block& block, const float* b, int64_t j, bool add,
                      const PanelOf& panel_of) {
  const int64_t n = std::min(kTileCols, x.n - j);
  for (int64_t i = 0; i < block.m; i += kTileRows) {
    float* c = x.c + (block.i + i) * x.ldc + j;
    const int64_t m = std::min(kTileRows, block.m - i);
    const auto panel = panel_of(i);
    if (m < kTileRows || n < kTileCols) {
      multiply_edge(panel, b, block.k,
                    {.m = m, .n = n, .k = 0, .a = x.a, .b = x.b, .c = c, .ldc = x.ldc}, add);
    } else if (add) {
      multiply_tile<true>(panel, b, block.k, c, x.ldc);
    } else {
      multiply_tile<false>(panel, b, block.k, c, x.ldc);
    }
  }
}

void multiply_block(const CpuGemm& x, const Block& block, float* a, float* b) {
  const bool add = x.add || block.p > 0;
  Block direct = block, rest = block;  // rows that are read in place, and those laid out
  if (!x.a.t) {
    direct.m = x.n <= kInPlaceCols ? block.m : 0;
  } else {  // Whole tiles: columns past the last may be nobody's.
    direct.m = x.n <= kInPlaceColsT && x.a.rows == nullptr ? block.m - block.m % kTileRows : 0;
  }
  rest.i += direct.m;
  rest.m -= direct.m;
  lay_out_a(x.a, rest, a);
  for (int64_t j = 0; j < x.n; j += kTileCols) {
    lay_out_b(x.b, block, j, x.n, b);
    if (x.a.t) {
      multiply_columns(x, direct, b, j, add, [&](int64_t i) {
        return Columns{x.a.data + block.p * x.a.ld + block.i + i, x.a.ld};
      });
    } else {
      multiply_columns(x, direct, b, j, add, [&](int64_t i) { return rows_at(x.a, block, i); });
    }
    multiply_columns(x, rest, b, j, add,
                     [&](int64_t i) { return Panel{a + i / kTileRows * block.panel()}; });
  }
}

}  // namespace

void cpu_gemm_cpu(const CpuGemm& args, float* scratch) {
  validate(args);
  const auto& [m, n, k, a, b, c, ldc, add] = args;
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t i = 0; !add && i < m; ++i) std::fill_n(c + i * ldc, n, 0.0f);
    return;
  }
  constexpr int64_t kLine = 64, kFloat = sizeof(float);
  const auto address = reinterpret_cast<intptr_t>(scratch);
  float* b_panel = scratch + (round_up(address, kLine) - address) / kFloat;
  float* a_panels = b_panel + kTileCols * kBlockSum;
  const int64_t step = sum_block(k);
  for (int64_t i = 0; i < m; i += kBlockRows) {
    for (int64_t p = 0; p < k; p += step) {
      multiply_block(args, {i, std::min(kBlockRows, m - i), p, std::min(step, k - p)}, a_panels,
                     b_panel);
    }
  }
}

}  // namespace troupe
