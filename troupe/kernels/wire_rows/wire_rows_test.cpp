#include "troupe/kernels/wire_rows/wire_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

struct Case {
  Backend backend;
  Dtype dtype;
  int64_t width;
  WireCode code = WireCode::kInt8;
};

// What is past the packed rows, and past D of rows that come back, is there to see that nothing
// writes to it.
struct Problem {
  static constexpr int64_t kGuard = 16;

  Problem(int64_t tokens, int64_t rows_out, const Case& c, int64_t pad = 0)
      : rows(rows_out),
        code(c.code),
        bytes(wire_row(c.width, code).bytes),
        x(c.dtype, tokens, c.width, pad),
        back(c.dtype, rows, c.width, pad),
        packed(rows * bytes + kGuard),
        index(rows) {
    x.fill_normal(1);
    std::memset(packed.data(), 0xa5, packed.size());
    for (int64_t r = 0; r < rows; ++r) index[r] = (5 * r + 2) % tokens;
  }
  PackRows forth(bool indexed = true) {
    return {.x = x.view(),
            .index = indexed ? index.data() : nullptr,
            .packed = {packed.data(), rows, bytes, bytes},
            .code = code};
  }
  UnpackRows home() {
    return {.packed = {packed.data(), rows, bytes, bytes}, .out = back.mut(), .code = code};
  }
  double scale(int64_t r, int64_t i) {
    uint16_t bits = 0;
    std::memcpy(&bits,
                packed.data() + r * bytes + wire_row(x.cols()).scales_at + 2 * (i / kWireGroup),
                sizeof bits);
    return std::bit_cast<float>(uint32_t{bits} << 15);
  }
  int64_t rows;
  WireCode code;
  int64_t bytes;
  Matrix x, back;
  Buffer<uint8_t> packed;
  Buffer<int64_t> index;
};

void run(Backend backend, Problem& p, bool indexed = true) {
  testing::run(backend, p.forth(indexed), pack_rows_cpu, TROUPE_CUDA_PATH(pack_rows_cuda));
  testing::run(backend, p.home(), unpack_rows_cpu, TROUPE_CUDA_PATH(unpack_rows_cuda));
}

void expect_same(Problem& got, Problem& want, const std::string& what) {
  for (size_t i = 0; i < want.packed.size(); ++i) {
    ASSERT_EQ(int{got.packed[i]}, int{want.packed[i]}) << what << ", byte " << i;
  }
  testing::expect_near(got.back, want.back, testing::Tolerance{0, 0}, what);
  bool has_nan = false;  // whose bits are the device's
  want.back.each([&](int64_t r, int64_t i) { has_nan |= std::isnan(want.back.get(r, i)); });
  EXPECT_TRUE(has_nan || got.back.same_bits(want.back)) << what;
}

// Of either code; WireRowsTest's cases are of kInt8.
class RowsOfCode : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
  Problem problem(int64_t tokens, int64_t rows, int64_t pad = 0) const {
    return {tokens, rows, GetParam(), pad};
  }

  // Fills x (as the type rounds it), runs this path and the reference, and compares all bytes.
  void expect_agreement(const std::function<double(int64_t, int64_t)>& fill,
                        const std::string& what) {
    Problem got = problem(7, 11), want = problem(7, 11);
    for (Problem* p : {&got, &want}) {
      p->x.each([&](int64_t r, int64_t i) { p->x.set(r, i, fill(r, i)); });
    }
    run(GetParam().backend, got);
    pack_rows_ref(want.forth());
    unpack_rows_ref(want.home());
    expect_same(got, want, what);
  }
  bool narrow() const { return GetParam().dtype == Dtype::kF16; }
  void expect_agreement_of_normal_rows();
  void expect_bad_rows_alone_are_lost();
  void expect_agreement_of_shifted_rows();
};
class WireRowsTest : public RowsOfCode {};
class E4m3RowsTest : public RowsOfCode {};

void RowsOfCode::expect_agreement_of_normal_rows() {
  for (const int64_t rows : {0, 1, 5, 70}) {
    for (const int64_t pad : {0, 3, 16}) {
      for (const bool indexed : {false, true}) {
        const int64_t tokens = indexed ? 9 : rows;
        Problem got = problem(tokens, rows, pad), want = problem(tokens, rows, pad);
        run(GetParam().backend, got, indexed);
        pack_rows_ref(want.forth(indexed));
        unpack_rows_ref(want.home());
        expect_same(got, want, std::to_string(rows) + " rows, pad " + std::to_string(pad));
      }
    }
  }
}

TEST_P(WireRowsTest, Q4_EachRowIsTheOneOfItsIndex) {
  Problem all = problem(9, 9), some = problem(9, 20);
  run(GetParam().backend, all, /*indexed=*/false);
  run(GetParam().backend, some);
  for (int64_t r = 0; r < some.rows; ++r) {
    EXPECT_EQ(
        std::memcmp(some.packed.data() + r * some.bytes,
                    all.packed.data() + some.index[r] * all.bytes, static_cast<size_t>(all.bytes)),
        0)
        << r;
  }
}

TEST_P(WireRowsTest, Q4_BytesAndRowsAreTheReferencesExactlyAndNothingFurtherIsWritten) {
  expect_agreement_of_normal_rows();
}
TEST_P(E4m3RowsTest, Q8_33_BytesAndRowsAreTheReferencesExactlyAndNothingFurtherIsWritten) {
  expect_agreement_of_normal_rows();
}

TEST_P(WireRowsTest, Q4_TheErrorIsHalfAStepOf32ElementsAndNothingClips) {
  const double rounding = GetParam().dtype == Dtype::kF16    ? 5e-4
                          : GetParam().dtype == Dtype::kBF16 ? 4e-3
                                                             : 6e-8;
  const double last = narrow() ? std::ldexp(1, -25) : 0;  // half of f16's smallest number
  const double least = std::ldexp(1, -126);
  for (const int exponent : {0, -12, 12, -40, -100, -126, -140, 100, 125}) {
    if (narrow() && std::abs(exponent) > 12) continue;
    Problem p = problem(6, 6);
    p.x.each([&](int64_t r, int64_t i) { p.x.set(r, i, std::ldexp(p.x.get(r, i), exponent)); });
    run(GetParam().backend, p, /*indexed=*/false);
    p.x.each([&](int64_t r, int64_t i) {
      const int64_t begin = i / kWireGroup * kWireGroup;
      double largest = 0;
      for (int64_t j = begin; j < std::min(begin + kWireGroup, p.x.cols()); ++j) {
        largest = std::max(largest, std::abs(p.x.get(r, j)));
      }
      const double step = 1.0001 * std::max(largest / 127, least);
      const double x = p.x.get(r, i), back = p.back.get(r, i);
      ASSERT_LE(std::abs(back - x), step / 2 + rounding * std::abs(x) + last) << r << ' ' << i;
      const double more = largest < 127 * least ? least / 2 : largest * std::ldexp(1, -23);
      ASSERT_LE(std::abs(back), largest + more) << r << ' ' << i;
      ASSERT_LE(p.scale(r, i), step);
    });
  }
}

// Groups whose largest element is at the ends of what nine leading bits can say.
TEST_P(WireRowsTest, Q4_CutScalesHoldTheirGroup) {
  expect_agreement(
      [](int64_t r, int64_t i) {
        const float edge = std::ldexp(1.0f + static_cast<float>(r) / 256, -3) * 127.0f;
        return i % kWireGroup == 0   ? edge
               : i % kWireGroup == 1 ? -std::nextafter(edge, 0.0f)
                                     : std::nextafter(edge, 100.0f);
      },
      "edges");
}

// Elements on and beside the ties k + 1/2 of a scale of 1.
TEST_P(WireRowsTest, Q4_TiesGoToEvenAndNeighborsToTheirOwnSide) {
  expect_agreement(
      [](int64_t r, int64_t i) {
        if (i % kWireGroup == 0) return 127.0;
        const float tie = static_cast<float>((i + r) / 3 % 13) - 6.5f;
        return static_cast<double>(i % 3 == 0   ? tie
                                   : i % 3 == 1 ? std::nextafter(tie, 10.0f)
                                                : std::nextafter(tie, -10.0f));
      },
      "ties");
}

TEST_P(WireRowsTest, Q4_TinyAndHugeGroups) {
  expect_agreement(
      [&](int64_t r, int64_t i) {
        const auto step = static_cast<int>((i / kWireGroup + 3 * r) % 22);
        const double x = i % 2 == 0 ? 1.3 : -0.7;
        return std::ldexp(x, narrow() ? 2 * step - 27 : 13 * step - 149);  // to 2^124 or 2^15
      },
      "sizes");
  expect_agreement(
      [&](int64_t r, int64_t i) { return (i + r) % 2 == 0 ? (narrow() ? 65504 : 3.38e38) : 1; },
      "largest");
}

TEST_P(WireRowsTest, Q4_ZerosStayZerosAndAreZeroBytes) {
  expect_agreement([](int64_t r, int64_t i) { return (r + i) % 2 == 0 ? 0.0 : -0.0; }, "zeros");
  Problem p = problem(3, 3);
  p.x.fill(-0.0);
  run(GetParam().backend, p, /*indexed=*/false);
  for (int64_t i = 0; i < 3 * p.bytes; ++i) ASSERT_EQ(int{p.packed[i]}, 0) << i;
  p.back.each([&](int64_t r, int64_t i) { ASSERT_EQ(p.back.get(r, i), 0); });
}

void RowsOfCode::expect_bad_rows_alone_are_lost() {
  for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
    for (const int64_t at : {int64_t{0}, GetParam().width / 2, GetParam().width - 1}) {
      const auto fill = [&](int64_t r, int64_t i) {
        return r == 3 && i == at ? bad : static_cast<double>(i % 17 - r);
      };
      expect_agreement(fill, "at " + std::to_string(at));
      Problem p = problem(7, 7);
      p.x.each([&](int64_t r, int64_t i) { p.x.set(r, i, fill(r, i)); });
      run(GetParam().backend, p, /*indexed=*/false);
      p.back.each([&](int64_t r, int64_t i) {
        ASSERT_EQ(std::isnan(p.back.get(r, i)), r == 3) << r << ' ' << i;
        ASSERT_TRUE(r == 3 || std::isfinite(p.back.get(r, i)));
      });
    }
  }
}

TEST_P(WireRowsTest, Q4_ANanOrInfinityTakesItsRowAndNoOther) {
  expect_bad_rows_alone_are_lost();
}
TEST_P(E4m3RowsTest, Q8_33_ANanOrInfinityTakesItsRowAndNoOther) {
  expect_bad_rows_alone_are_lost();
}

// x, packed and the result begin at addresses that are aligned to one element and to no more.
void RowsOfCode::expect_agreement_of_shifted_rows() {
  if (GetParam().width < 2) GTEST_SKIP() << "nothing after the first";
  Case c = GetParam();
  const auto from = [&](Problem& p) {
    const WireRow row = wire_row(c.width - 1, c.code);
    PackRows forth = p.forth();
    forth.x.data = static_cast<const char*>(forth.x.data) + size_bytes(c.dtype);
    forth.x.cols = c.width - 1;
    forth.packed = {p.packed.data() + 4, p.rows, row.bytes, row.bytes};
    UnpackRows home = p.home();
    home.packed = {forth.packed.data, p.rows, row.bytes, row.bytes};
    home.out.data = static_cast<char*>(home.out.data) + size_bytes(c.dtype);
    home.out.cols = c.width - 1;
    return std::pair(forth, home);
  };
  Problem got = problem(7, 11), want = problem(7, 11);
  const auto [forth, home] = from(got);
  const auto [want_forth, want_home] = from(want);
  testing::run(c.backend, forth, pack_rows_cpu, TROUPE_CUDA_PATH(pack_rows_cuda));
  testing::run(c.backend, home, unpack_rows_cpu, TROUPE_CUDA_PATH(unpack_rows_cuda));
  pack_rows_ref(want_forth);
  unpack_rows_ref(want_home);
  expect_same(got, want, "shifted");
}

TEST_P(WireRowsTest, Q4_TakesRowsThatBeginAnywhere) {
  expect_agreement_of_shifted_rows();
}
TEST_P(E4m3RowsTest, Q8_33_TakesRowsThatBeginAnywhere) {
  expect_agreement_of_shifted_rows();
}

// Largest elements on both sides of 448 scales, and ties of e4m3.
TEST_P(E4m3RowsTest, Q8_11_ScalesAndTiesAreTheRules) {
  expect_agreement(
      [](int64_t r, int64_t i) {
        const double largest[] = {448, 449, 464, 480, 1, 1.75, 1.8};
        if (i == 0) return largest[r % 7];
        return static_cast<double>((i * 37 + r) % 241 - 120) / 16;
      },
      "scales");
  expect_agreement([](int64_t r, int64_t i) { return (r + i) % 2 == 0 ? 0.0 : -0.0; }, "zeros");
  expect_agreement(
      [&](int64_t r, int64_t i) {
        const auto step = static_cast<int>((i + 3 * r) % 22);
        return std::ldexp(i % 2 == 0 ? 1.3 : -0.7, narrow() ? step - 12 : 13 * step - 149);
      },
      "sizes");
}

// q and x^ by the rule: half of a step of e4m3, 2^-4 of |x|, or of its subnormals.
TEST_P(E4m3RowsTest, Q8_33_TheErrorIsHalfAStepAndRoundingAgainChangesNoValue) {
  Problem first = problem(7, 7), again = problem(7, 7);
  run(GetParam().backend, first, /*indexed=*/false);
  again.x.each([&](int64_t r, int64_t i) { again.x.set(r, i, first.back.get(r, i)); });
  run(GetParam().backend, again, /*indexed=*/false);
  const double rounding = narrow() ? 1e-3 : 0;
  for (int64_t r = 0; r < 7; ++r) {
    double largest = 0;
    for (int64_t i = 0; i < first.x.cols(); ++i) {
      largest = std::max(largest, std::abs(first.x.get(r, i)));
    }
    for (int64_t i = 0; i < first.x.cols(); ++i) {
      const double x = first.x.get(r, i), back = first.back.get(r, i);
      const double least = largest / 224 * std::ldexp(1, -10);  // half of the subnormals' step
      ASSERT_LE(std::abs(back - x), std::max((1 + rounding) / 16 * std::abs(x), least)) << r;
      ASSERT_EQ(again.back.get(r, i), back) << r << ' ' << i;
    }
  }
}

TEST(E4m3Rows, Q8_33_ARowIsAByteAnElementAndAScaleInWordsOf16) {
  EXPECT_EQ(wire_row(0, WireCode::kE4m3).bytes, 0);
  EXPECT_EQ(wire_row(1, WireCode::kE4m3).bytes, 16);
  EXPECT_EQ(wire_row(12, WireCode::kE4m3).bytes, 16);
  EXPECT_EQ(wire_row(13, WireCode::kE4m3).bytes, 32);
  EXPECT_EQ(wire_row(2045, WireCode::kE4m3).scales_at, 2048);
  EXPECT_EQ(wire_row(2048, WireCode::kE4m3).bytes, 2048 + 16);
}

TEST(E4m3Rows, RefusesRowsOfTheOtherCode) {
  Problem p(4, 4, {Backend::kCpu, Dtype::kF32, 64, WireCode::kE4m3});
  PackRows a = p.forth();
  a.code = WireCode::kInt8;  // 64 + 4 bytes, and not 80
  EXPECT_THROW(pack_rows_cpu(a, serial), Error);
  UnpackRows b = p.home();
  b.code = WireCode::kInt8;
  EXPECT_THROW(unpack_rows_cpu(b, serial), Error);
}

TEST(WireRows, Q4_ARowIsAByteAnElementAndOneInSixteenMore) {
  EXPECT_EQ(wire_row(0).bytes, 0);
  EXPECT_EQ(wire_row(1).bytes, 4);
  EXPECT_EQ(wire_row(33).scales_at, 34);
  EXPECT_EQ(wire_row(33).bytes, 40);
  EXPECT_EQ(wire_row(2048).bytes, 2048 + 128);
  for (int64_t width = 1; width < 600; ++width) {
    const WireRow row = wire_row(width);
    EXPECT_EQ(row.groups, (width + 31) / 32);
    EXPECT_EQ(row.scales_at % 2, 0);
    EXPECT_EQ(row.bytes % (width % 256 == 0 ? 16 : width % 128 == 0 ? 8 : 4), 0);
    EXPECT_LT(row.bytes, width + 2 * row.groups + 4);
  }
}

TEST(WireRows, RefusesWhatItCannotMean) {
  Problem p(4, 6, {Backend::kCpu, Dtype::kF32, 40});
  const auto refused = [&](auto&& spoil) {
    PackRows a = p.forth();
    spoil(a);
    EXPECT_THROW(pack_rows_cpu(a, serial), Error);
  };
  refused([](PackRows& a) { a.index = nullptr; });  // 6 rows of 4
  refused([](PackRows& a) { a.x.data = nullptr; });
  refused([](PackRows& a) { a.x.rows = 3; });  // an index is 3
  refused([](PackRows& a) { a.packed.data = nullptr; });
  refused([](PackRows& a) { a.packed.data += 2; });
  refused([](PackRows& a) { a.packed.cols += 4; });
  refused([](PackRows& a) { a.packed.ld += 4; });
  UnpackRows b = p.home();
  b.out.rows = 5;
  EXPECT_THROW(unpack_rows_cpu(b, serial), Error);
  b = p.home();
  b.out.cols = 20;
  EXPECT_THROW(unpack_rows_cpu(b, serial), Error);
}

std::vector<Case> all_cases(WireCode code) {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
      if (b == Backend::kCuda && d == Dtype::kF64) continue;
      for (int64_t width : {1, 8, 31, 32, 33, 40, 100, 160, 256, 2048, 2880}) {
        cases.push_back({b, d, width, code});
      }
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, width, code] = info.param;
  return std::string(name(backend)) + "_" + name(dtype) + "_D" + std::to_string(width);
}
INSTANTIATE_TEST_SUITE_P(All, WireRowsTest, ::testing::ValuesIn(all_cases(WireCode::kInt8)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(All, E4m3RowsTest, ::testing::ValuesIn(all_cases(WireCode::kE4m3)),
                         case_name);

}  // namespace
}  // namespace troupe
