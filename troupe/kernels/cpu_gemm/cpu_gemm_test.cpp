#include "troupe/kernels/cpu_gemm/cpu_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {
namespace {

using Numbers = std::vector<float>;

Numbers normal(int64_t n, unsigned seed) {
  Numbers x(n);
  std::mt19937 rng(seed);
  std::normal_distribution<float> draw;
  for (float& v : x) v = draw(rng);
  return x;
}

std::vector<int32_t> shuffled(int64_t n, unsigned seed) {
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return order;
}

struct Case {
  int64_t m, n, k;
  bool a_t = false, b_t = false, gather_a = false, gather_b = false, add = false;
};

// The operands of a case, their rows three elements apart more than they are long; NaN between.
struct Problem {
  static constexpr int64_t kPad = 3;

  explicit Problem(const Case& p)
      : shape(p),
        a(operand(p.a_t ? p.k : p.m, p.a_t ? p.m : p.k, 1)),
        b(operand(p.b_t ? p.n : p.k, p.b_t ? p.k : p.n, 2)),
        c(normal(p.m * (p.n + kPad), 3)),
        a_rows(shuffled(p.a_t ? p.k : p.m, 4)),
        b_rows(shuffled(p.b_t ? p.n : p.k, 5)),
        scratch(kCpuGemmScratch, std::numeric_limits<float>::quiet_NaN()) {}

  static Numbers operand(int64_t rows, int64_t cols, unsigned seed) {
    Numbers x = normal(rows * (cols + kPad), seed);
    for (int64_t r = 0; r < rows; ++r) {
      std::fill_n(x.begin() + r * (cols + kPad) + cols, kPad, NAN);
    }
    return x;
  }
  CpuGemm args() {
    const Case& p = shape;
    return {
        .m = p.m,
        .n = p.n,
        .k = p.k,
        .a = {a.data(), (p.a_t ? p.m : p.k) + kPad, p.a_t, p.gather_a ? a_rows.data() : nullptr},
        .b = {b.data(), (p.b_t ? p.k : p.n) + kPad, p.b_t, p.gather_b ? b_rows.data() : nullptr},
        .c = c.data(),
        .ldc = p.n + kPad,
        .add = p.add};
  }
  void run() { cpu_gemm_cpu(args(), scratch.data()); }
  float& at(int64_t i, int64_t j) { return c[i * (shape.n + kPad) + j]; }

  Case shape;
  Numbers a, b, c;
  std::vector<int32_t> a_rows, b_rows;
  Numbers scratch;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const int64_t shapes[][3] = {{1, 1, 1},    {6, 16, 8},    {5, 15, 7},    {7, 17, 9},
                               {517, 33, 5}, {13, 40, 321}, {64, 48, 700}, {1040, 16, 12}};
  for (const auto& [m, n, k] : shapes) {
    for (int form = 0; form < 32; ++form) {
      all.push_back({m, n, k, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0, (form & 8) != 0,
                     (form & 16) != 0});
    }
  }
  for (const bool add : {false, true}) {
    for (const auto& [m, n, k] : {std::array{0, 5, 3}, {5, 0, 3}, {5, 9, 0}}) {
      all.push_back({.m = m, .n = n, .k = k, .add = add});
    }
  }
  return all;
}

std::string name(const Case& p) {
  std::string text;
  for (const auto& [letter, size] : {std::pair{'m', p.m}, {'n', p.n}, {'k', p.k}}) {
    text += letter;
    text += std::to_string(size);
  }
  for (const auto& [on, what] : {std::pair{p.a_t, "_at"},
                                 {p.b_t, "_bt"},
                                 {p.gather_a, "_ga"},
                                 {p.gather_b, "_gb"},
                                 {p.add, "_add"}}) {
    if (on) text += what;
  }
  return text;
}

class CpuGemmTest : public ::testing::TestWithParam<Case> {};

TEST_P(CpuGemmTest, AgreesWithTheReferenceAndWritesNothingElse) {
  Problem got(GetParam()), want(GetParam());
  got.run();
  cpu_gemm_ref(want.args());
  const double bound = 1e-6 * std::sqrt(static_cast<double>(std::max<int64_t>(1, got.shape.k)));
  for (int64_t i = 0; i < got.shape.m; ++i) {
    for (int64_t j = 0; j < got.shape.n; ++j) {
      ASSERT_NEAR(got.at(i, j), want.at(i, j), bound * 4) << i << ", " << j;
    }
    for (int64_t j = got.shape.n; j < got.shape.n + Problem::kPad; ++j) {
      ASSERT_EQ(got.at(i, j), want.at(i, j)) << i << ", pad " << j;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, CpuGemmTest, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return name(test.param); });

TEST(CpuGemm, ARowHasTheSameBitsInAnyProduct) {
  Problem whole({.m = 530, .n = 70, .k = 700});
  whole.run();
  for (const int64_t first : {0, 1, 515, 529}) {
    Problem part(whole.shape);
    CpuGemm args = part.args();
    args.m = std::min<int64_t>(3, 530 - first);
    args.n = 37;
    args.a.data += first * args.a.ld;
    args.b.data += 20;
    args.c += first * args.ldc + 20;
    cpu_gemm_cpu(args, part.scratch.data());
    for (int64_t i = first; i < first + args.m; ++i) {
      for (int64_t j = 20; j < 57; ++j) ASSERT_EQ(part.at(i, j), whole.at(i, j)) << i << ' ' << j;
    }
  }
}

TEST(CpuGemm, ANaNStaysInItsRowAndColumn) {
  Problem p({.m = 20, .n = 30, .k = 40});
  p.a[7 * (40 + Problem::kPad) + 3] = NAN;
  std::fill(p.c.begin(), p.c.end(), NAN);  // overwritten, whatever it held
  p.run();
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t j = 0; j < 30; ++j) ASSERT_EQ(std::isnan(p.at(i, j)), i == 7) << i << ' ' << j;
  }
}

std::string refusal(CpuGemm args) {
  Numbers scratch(kCpuGemmScratch);
  try {
    cpu_gemm_cpu(args, scratch.data());
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(CpuGemm, RefusesWhatItCannotRead) {
  Problem p({.m = 4, .n = 5, .k = 6});
  const auto with = [&](auto change) {
    CpuGemm args = p.args();
    change(args);
    return refusal(args);
  };
  const auto contains = [](const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
  };
  EXPECT_TRUE(contains(with([](auto& x) { x.m = -1; }), "m -1"));
  EXPECT_TRUE(contains(with([](auto& x) { x.a.data = nullptr; }), "a is null"));
  EXPECT_TRUE(contains(with([](auto& x) { x.b.ld = 4; }), "b has rows 4 apart, but 5 columns"));
  EXPECT_TRUE(contains(with([](auto& x) { x.ldc = 4; }), "c has rows 4 apart, but 5 columns"));
  EXPECT_TRUE(contains(with([](auto& x) { x.c = nullptr; }), "c is null"));
  EXPECT_EQ(with([](auto& x) { x.m = 0, x.c = nullptr; }), "");
}

}  // namespace
}  // namespace troupe
