#include "troupe/kernels/fp8/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

enum class Parts { kOne, kStack, kExperts };

struct Case {
  Backend backend;
  Dtype dtype;
  int64_t rows, columns;  // of a group
  Parts parts;
  int64_t width;
};

// 300 rows: two short tiles of 128; a stack of three matrices of 100; or experts of 0, 1, 127, 129
// and 0 rows, and 43 rows that are no expert's.
struct Problem {
  static constexpr int64_t kRows = 300;

  explicit Problem(const Case& c, int64_t pad = 0)
      : x(c.dtype, kRows, c.width, pad),
        back(c.dtype, kRows, c.width, pad),
        offset(6),
        factor(kRows),
        largest(3) {
    groups.rows = c.rows, groups.columns = c.columns;
    if (c.parts == Parts::kStack) groups.part_rows = 100;
    const std::vector<int32_t> begins = {0, 0, 1, 128, 257, 257};
    std::copy(begins.begin(), begins.end(), offset.data());
    if (c.parts == Parts::kExperts) groups.offset = offset.data(), groups.experts = 5;
    x.fill_normal(1);
    scale_ld = scale_columns(groups, c.width);
    bytes = std::make_unique<Buffer<uint8_t>>(kRows * (c.width + pad));
    scales = std::make_unique<Buffer<float>>(scale_rows(groups, kRows) * scale_ld);
    std::memset(bytes->data(), 0xa5, bytes->size());
    for (size_t i = 0; i < scales->size(); ++i) (*scales)[i] = -5;
    for (int64_t r = 0; r < kRows; ++r) factor[r] = std::ldexp(1.0f, static_cast<int>(r % 7) - 3);
    for (int i = 0; i < 3; ++i) largest[i] = std::ldexp(1.3f, i);  // some elements are larger
    byte_ld = c.width + pad;
  }
  QuantizeFp8 forth(bool with_factor = false) {
    return {.x = x.view(),
            .factor = with_factor ? factor.data() : nullptr,
            .largest = with_largest ? largest.data() : nullptr,
            .groups = groups,
            .bytes = {bytes->data(), kRows, x.cols(), byte_ld},
            .scales = {scales->data(), scale_rows(groups, kRows), scale_ld, scale_ld}};
  }
  DequantizeFp8 home() {
    return {.bytes = {bytes->data(), kRows, x.cols(), byte_ld},
            .scales = {scales->data(), scale_rows(groups, kRows), scale_ld, scale_ld},
            .groups = groups,
            .x = back.mut()};
  }
  int64_t used_rows() const { return groups.offset != nullptr ? 257 : kRows; }

  Matrix x, back;
  Buffer<int32_t> offset;
  Buffer<float> factor, largest;
  bool with_largest = false;
  Fp8Groups groups;
  std::unique_ptr<Buffer<uint8_t>> bytes;
  std::unique_ptr<Buffer<float>> scales;
  int64_t scale_ld = 0, byte_ld = 0;
};

void run(Backend backend, Problem& p, bool with_factor = false) {
  testing::run(backend, p.forth(with_factor), quantize_fp8_cpu,
               TROUPE_CUDA_PATH(quantize_fp8_cuda));
  testing::run(backend, p.home(), dequantize_fp8_cpu, TROUPE_CUDA_PATH(dequantize_fp8_cuda));
}

// All bytes, scales (which NaN is the device's own) and values, what must not be written included.
void expect_same(Problem& got, Problem& want, const std::string& what) {
  for (size_t i = 0; i < want.bytes->size(); ++i) {
    ASSERT_EQ(int{(*got.bytes)[i]}, int{(*want.bytes)[i]}) << what << ", byte " << i;
  }
  for (size_t i = 0; i < want.scales->size(); ++i) {
    const float g = (*got.scales)[i], w = (*want.scales)[i];
    ASSERT_TRUE(g == w || (std::isnan(g) && std::isnan(w)))
        << what << ", scale " << i << ": " << g << ", not " << w;
  }
  testing::expect_near(got.back, want.back, testing::Tolerance{0, 0}, what);
}

class Fp8Test : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
  void expect_agreement(const std::function<double(int64_t, int64_t)>& fill,
                        const std::string& what, bool with_factor = false, int64_t pad = 0,
                        bool with_largest = false) {
    Problem got(GetParam(), pad), want(GetParam(), pad);
    for (Problem* p : {&got, &want}) {
      p->with_largest = with_largest;
      if (fill) p->x.each([&](int64_t r, int64_t i) { p->x.set(r, i, fill(r, i)); });
    }
    run(GetParam().backend, got, with_factor);
    quantize_fp8_ref(want.forth(with_factor));
    dequantize_fp8_ref(want.home());
    expect_same(got, want, what);
  }
  bool narrow() const { return GetParam().dtype == Dtype::kF16; }
};

TEST_P(Fp8Test, Q8_BytesScalesAndValuesAreTheReferencesExactly) {
  for (const int64_t pad : {0, 3, 16}) {
    for (const bool with_factor : {false, true}) {
      expect_agreement({}, "pad " + std::to_string(pad), with_factor, pad);
    }
  }
}

// One maximum for all groups of a part: their scales are one, and what is larger becomes 448 of it.
TEST_P(Fp8Test, Q8_21_AGivenMaximumIsThatOfAllGroupsAndWhatIsLargerSaturates) {
  for (const bool with_factor : {false, true}) {
    expect_agreement({}, "given", with_factor, 0, /*with_largest=*/true);
    expect_agreement([](int64_t r, int64_t i) { return r == 7 && i == 3 ? double{NAN} : 1.0; },
                     "a NaN below it", with_factor, 0, /*with_largest=*/true);
  }
  Problem p(GetParam());
  p.with_largest = true;
  p.x.set(0, 0, 1000);
  run(GetParam().backend, p);
  const std::vector<float> scales =
      p.groups.part_rows > 0 ? std::vector{0x1p-8f, 0x1p-7f, 0x1p-6f} : std::vector{0x1p-8f};
  EXPECT_EQ((*p.scales)[p.groups.offset != nullptr ? p.scale_ld : 0], scales[0]);  // row 0's
  EXPECT_EQ(p.back.get(0, 0), 448.0 / 256);
  for (int64_t r = 0; r < p.used_rows(); ++r) {
    const double limit = 448.0 * scales[p.groups.part_rows > 0 ? r / p.groups.part_rows : 0];
    for (int64_t i = 0; i < p.x.cols(); ++i) ASSERT_LE(std::abs(p.back.get(r, i)), limit) << r;
  }
}

// Largest elements at 1.75 2^k, one step above, and beside powers of two (Q8-11), at many sizes.
TEST_P(Fp8Test, Q8_11_ScalesChangeJustAbove448) {
  expect_agreement(
      [&](int64_t r, int64_t i) {
        const int k = narrow() ? static_cast<int>(r % 25) - 12 : static_cast<int>(r % 250) - 125;
        const float edge = std::ldexp(1.75f, k);
        const float size = r % 3 == 0   ? edge
                           : r % 3 == 1 ? std::nextafter(edge, 1e38f)
                                        : edge / 1.75f;
        return double{i == 0 ? size : size / 3};
      },
      "edges");
}

// On ties between neighbors of e4m3 and on both sides of them, subnormal bytes among them.
TEST_P(Fp8Test, Q8_12_TiesGoToEven) {
  expect_agreement(
      [](int64_t r, int64_t i) {
        if (i == 0) return 448.0;
        const auto step = static_cast<int>((i + 5 * r) / 3 % 120);
        const double low =
            step < 8 ? std::ldexp(step, -9) : std::ldexp(8 + step % 8, step / 8 - 10);
        const int e = step < 8 ? -9 : step / 8 - 10;
        const auto tie = static_cast<float>(low + std::ldexp(0.5, e));
        return double{i % 3 == 0 ? tie : std::nextafter(tie, i % 3 == 1 ? 1e9f : -1e9f)};
      },
      "ties");
}

TEST_P(Fp8Test, Q8_11_TinyHugeAndZeroGroups) {
  expect_agreement(
      [&](int64_t r, int64_t i) {
        const auto step = static_cast<int>(r % 22);
        const double x = i % 2 == 0 ? 1.3 : -0.7;
        return std::ldexp(x, narrow() ? 2 * step - 27 : 13 * step - 149);
      },
      "sizes");
  expect_agreement([](int64_t r, int64_t i) { return (r + i) % 2 == 0 ? 0.0 : -0.0; }, "zeros");
}

TEST_P(Fp8Test, Q8_11_ANanOrInfinityTakesItsGroupAndNoOther) {
  for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
    const auto fill = [&](int64_t r, int64_t i) {
      return r == 130 && i == 0 ? bad : static_cast<double>(i % 17 - r % 5);
    };
    expect_agreement(fill, "not finite");
    Problem p(GetParam());
    p.x.each([&](int64_t r, int64_t i) { p.x.set(r, i, fill(r, i)); });
    run(GetParam().backend, p);
    EXPECT_TRUE(std::isnan(p.back.get(130, 0)));
    const int64_t columns = p.groups.columns == kWholeRow ? GetParam().width : p.groups.columns;
    p.back.each([&](int64_t r, int64_t i) {
      const bool beside = p.groups.rows > 1 || r == 130;
      if (beside && i < columns) return;
      ASSERT_TRUE(std::isfinite(p.back.get(r, i))) << r << ' ' << i;
    });
  }
}

// The relative error of a value that is no subnormal byte is at most half a step: 1 in 16.
TEST_P(Fp8Test, Q8_12_TheErrorIsASixteenthAndNothingClips) {
  Problem p(GetParam());
  run(GetParam().backend, p);
  for (int64_t r = 0; r < p.used_rows(); ++r) {
    for (int64_t i = 0; i < p.x.cols(); ++i) {
      const double x = p.x.get(r, i), back = p.back.get(r, i);
      ASSERT_LE(std::abs(back - x), std::max(std::abs(x) / 16, std::ldexp(4, -17)))
          << r << ' ' << i;
    }
  }
}

// Q8-2: 2^j times the input is 2^j times every scale, and the same bytes.
TEST_P(Fp8Test, Q8_2_PowersOfTwoChangeNoByte) {
  for (const int j : {-20, 20}) {
    if (narrow()) continue;
    Problem one(GetParam()), other(GetParam());
    other.x.each([&](int64_t r, int64_t i) { other.x.set(r, i, std::ldexp(one.x.get(r, i), j)); });
    run(GetParam().backend, one);
    run(GetParam().backend, other);
    for (size_t i = 0; i < one.bytes->size(); ++i)
      ASSERT_EQ((*one.bytes)[i], (*other.bytes)[i]) << i;
    for (size_t i = 0; i < one.scales->size(); ++i) {
      const float s = (*one.scales)[i];
      ASSERT_EQ((*other.scales)[i], s == -5 ? s : std::ldexp(s, j)) << i;
    }
  }
}

TEST(Fp8, Q8_3_ARowsBytesDependOnThatRowAlone) {
  const Case c{Backend::kCpu, Dtype::kF32, 1, kWholeRow, Parts::kOne, 200};
  Problem all(c), other(c);
  other.x.each([&](int64_t r, int64_t i) {
    if (r != 7) other.x.set(r, i, 1e6);
  });
  run(Backend::kCpu, all);
  run(Backend::kCpu, other);
  for (int64_t i = 0; i < 200; ++i)
    EXPECT_EQ((*all.bytes)[7 * 200 + i], (*other.bytes)[7 * 200 + i]);
  EXPECT_EQ((*all.scales)[7], (*other.scales)[7]);
}

TEST(Fp8, RefusesWhatItCannotMean) {
  const Case c{Backend::kCpu, Dtype::kF32, 128, 128, Parts::kOne, 200};
  const auto refused = [&](auto&& spoil) {
    Problem p(c);
    QuantizeFp8 a = p.forth();
    spoil(a);
    EXPECT_THROW(quantize_fp8_cpu(a, serial), Error);
  };
  refused([](QuantizeFp8& a) { a.groups.rows = 64; });
  refused([](QuantizeFp8& a) { a.groups.part_rows = 7; });
  refused([](QuantizeFp8& a) { a.bytes.data = nullptr; });
  refused([](QuantizeFp8& a) { a.bytes.cols -= 1; });
  refused([](QuantizeFp8& a) { a.scales.rows += 1; });
  refused([](QuantizeFp8& a) { a.x.data = nullptr; });
  Problem p(c);
  DequantizeFp8 b = p.home();
  b.x.rows -= 1;
  EXPECT_THROW(dequantize_fp8_cpu(b, serial), Error);
}

std::vector<Case> all_cases() {
  const std::pair<int64_t, int64_t> tiles[] = {{1, kWholeRow}, {1, 128}, {128, 128}};
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (const auto& [rows, columns] : tiles) {
      for (Parts parts : {Parts::kOne, Parts::kStack, Parts::kExperts}) {
        for (Dtype d : {Dtype::kF32, Dtype::kBF16}) {
          for (int64_t width : {33, 256}) cases.push_back({b, d, rows, columns, parts, width});
        }
        cases.push_back({b, Dtype::kF16, rows, columns, parts, 160});
      }
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  const char* parts = c.parts == Parts::kOne     ? "one"
                      : c.parts == Parts::kStack ? "stack"
                                                 : "experts";
  return std::string(name(c.backend)) + "_" + name(c.dtype) + "_" + std::to_string(c.rows) + "x" +
         std::to_string(c.columns) + "_" + parts + "_C" + std::to_string(c.width);
}
INSTANTIATE_TEST_SUITE_P(All, Fp8Test, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace troupe
