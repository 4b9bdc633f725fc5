#include "troupe/kernels/quantize/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
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
  int bits;
  int64_t size;
};

struct Problem {
  Problem(int64_t n, Dtype d, int b)
      : bits(b),
        x(d, 1, n),
        back(d, 1, n),
        values(quantized_value_bytes(n, b)),
        scales(quantized_scales(n)),
        saturated(1) {
    x.fill_normal(1);
    saturated[0] = 0;
  }
  Quantize forward() {
    return {.x = x.view(),
            .values = values.data(),
            .scales = scales.data(),
            .saturated = saturated.data(),
            .bits = bits};
  }
  Dequantize backward() {
    return {.values = values.data(), .scales = scales.data(), .x = back.mut(), .bits = bits};
  }
  double scale(int64_t i) { return static_cast<float>(scales[i / kQuantGroup]); }
  int bits;
  Matrix x, back;
  Buffer<uint8_t> values;
  Buffer<F16> scales;
  Buffer<int64_t> saturated;
};

void run(Backend backend, Problem& p) {
  testing::run(backend, p.forward(), quantize_cpu, TROUPE_CUDA_PATH(quantize_cuda));
  testing::run(backend, p.backward(), dequantize_cpu, TROUPE_CUDA_PATH(dequantize_cuda));
}

void expect_same_bytes(Problem& got, Problem& want) {
  for (size_t i = 0; i < want.values.size(); ++i) {
    ASSERT_EQ(int{got.values[i]}, int{want.values[i]}) << "byte " << i;
  }
  for (size_t i = 0; i < want.scales.size(); ++i) {
    ASSERT_EQ(got.scales[i].bits & 0x7e00, want.scales[i].bits & 0x7e00) << "scale " << i;
    if (std::isnan(static_cast<float>(want.scales[i]))) continue;  // Which NaN is the device's.
    ASSERT_EQ(got.scales[i].bits, want.scales[i].bits) << "scale " << i;
  }
  EXPECT_EQ(got.saturated[0], want.saturated[0]);
}

class QuantizeTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
  Problem problem() const { return {GetParam().size, GetParam().dtype, GetParam().bits}; }

  // Fills x, runs this path and the reference, and compares bytes and values read back.
  void expect_agreement(const std::function<double(int64_t)>& fill) {
    Problem got = problem(), want = problem();
    for (Problem* p : {&got, &want}) {
      p->x.each([&](int64_t, int64_t i) { p->x.set(0, i, fill(i)); });
    }
    run(GetParam().backend, got);
    quantize_ref(want.forward());
    dequantize_ref(want.backward());
    expect_same_bytes(got, want);
    testing::expect_near(got.back, want.back, testing::Tolerance{0, 0});
  }
};

TEST_P(QuantizeTest, Q2_BytesAreTheReferencesExactly) {
  Problem normal = problem();
  expect_agreement([&](int64_t i) { return normal.x.get(0, i); });
}

// Elements on and beside the ties k + 1/2 of a scale that is no power of two.
TEST_P(QuantizeTest, Q2_TiesGoToEvenAndNeighborsToTheirOwnSide) {
  const double qmax = GetParam().bits == 8 ? 127 : 7, scale = 1.001953125;  // 1 + 2^-9: in fp16
  expect_agreement([&](int64_t i) {
    if (i % kQuantGroup == 0) return scale * qmax;
    const float tie = static_cast<float>(scale * (static_cast<double>(i / 3 % 13) - 6.5));
    return static_cast<double>(i % 3 == 0   ? tie
                               : i % 3 == 1 ? std::nextafter(tie, 10.0f)
                                            : std::nextafter(tie, -10.0f));
  });
}

TEST_P(QuantizeTest, Q2_TinyAndHugeGroups) {
  expect_agreement([](int64_t i) {
    return static_cast<float>(
        std::ldexp(i % 2 == 0 ? 1.3 : -0.7, static_cast<int>(i / kQuantGroup % 12) * 13 - 80));
  });
}

TEST_P(QuantizeTest, Q2_NothingClipsAndTheErrorIsHalfAScale) {
  Problem p = problem();
  run(GetParam().backend, p);
  const double rounding = p.x.dtype() == Dtype::kF32   ? 1e-7
                          : p.x.dtype() == Dtype::kF16 ? 1e-3
                                                       : 8e-3;
  for (int64_t i = 0; i < p.x.cols(); ++i) {
    const double x = p.x.get(0, i), back = p.back.get(0, i);
    ASSERT_LE(std::abs(back - x), p.scale(i) / 2 + rounding * std::abs(x)) << "at " << i;
  }
  EXPECT_EQ(p.saturated[0], 0);
}

TEST_P(QuantizeTest, Q2_TheScaleIsTheSmallestThatHoldsItsGroup) {
  Problem p = problem();
  run(GetParam().backend, p);
  const double qmax = p.bits == 8 ? 127 : 7;
  for (int64_t g = 0; g < quantized_scales(p.x.cols()); ++g) {
    double largest = 0;
    for (int64_t i = g * kQuantGroup; i < std::min((g + 1) * kQuantGroup, p.x.cols()); ++i) {
      largest = std::max(largest, std::abs(p.x.get(0, i)));
    }
    F16 below = p.scales[g];
    --below.bits;
    EXPECT_GE(p.scale(g * kQuantGroup) * qmax, largest);
    EXPECT_LT(static_cast<float>(below) * qmax, largest);
  }
}

TEST_P(QuantizeTest, Q2_ZerosStayZeros) {
  expect_agreement([](int64_t i) { return i % 2 == 0 ? 0.0 : -0.0; });
}

TEST_P(QuantizeTest, Q2_ANanOrInfinityTakesItsWholeGroup) {
  if (GetParam().size < 2 * kQuantGroup) GTEST_SKIP() << "one group";
  for (const double bad : {double{NAN}, double{INFINITY}, -double{INFINITY}}) {
    Problem p = problem();
    p.x.set(0, kQuantGroup + 5, bad);
    run(GetParam().backend, p);
    for (int64_t i = 0; i < p.x.cols(); ++i) {
      ASSERT_EQ(std::isnan(p.back.get(0, i)), i / kQuantGroup == 1) << "at " << i;
    }
    EXPECT_EQ(p.saturated[0], 0);
  }
}

TEST_P(QuantizeTest, Q2_SaturatedGroupsAreCounted) {
  if (GetParam().dtype == Dtype::kF16) GTEST_SKIP() << "f16 cannot hold it";
  const double qmax = GetParam().bits == 8 ? 127 : 7;
  // 65504 qmax fits; 1 % above it does not.
  expect_agreement(
      [&](int64_t i) { return 65504 * qmax * (i / kQuantGroup % 2 == 0 ? 0.99 : 1.01); });
  Problem p = problem();
  p.x.fill(1e30);
  p.saturated[0] = 5;
  run(GetParam().backend, p);
  EXPECT_EQ(p.saturated[0], 5 + quantized_scales(p.x.cols()));
}

TEST_P(QuantizeTest, G4_EveryRunGivesTheSameBytes) {
  Problem first = problem(), second = problem();
  run(Backend::kCpu, first);
  run(GetParam().backend, second);  // Also the CPU's and the GPU's bytes are the same.
  expect_same_bytes(second, first);
}

TEST(Quantize, Q2_Bytes) {
  EXPECT_EQ(quantized_bytes(0, 8), 0);
  EXPECT_EQ(quantized_bytes(1, 8), 1 + 2);
  EXPECT_EQ(quantized_bytes(32, 8), 32 + 2);
  EXPECT_EQ(quantized_bytes(33, 8), 33 + 4);
  EXPECT_EQ(quantized_bytes(1, 4), 1 + 2);
  EXPECT_EQ(quantized_bytes(33, 4), 17 + 4);
  EXPECT_EQ(quantized_bytes(int64_t{1} << 35, 4) * 8, (int64_t{1} << 35) * 9 / 2);
  EXPECT_THROW(quantized_bytes(32, 5), Error);
}

TEST(Quantize, RefusesWhatItCannotMean) {
  Problem p(64, Dtype::kF32, 8);
  const auto refused = [&](auto&& spoil) {
    Quantize a = p.forward();
    spoil(a);
    EXPECT_THROW(quantize_cpu(a, serial), Error);
  };
  refused([](Quantize& a) { a.bits = 2; });
  refused([](Quantize& a) { a.values = nullptr; });
  refused([](Quantize& a) { a.saturated = nullptr; });
  refused([](Quantize& a) { a.x.rows = 2; });
  refused([](Quantize& a) { a.x.dtype = Dtype::kF64; });
  Dequantize b = p.backward();
  b.scales = nullptr;
  EXPECT_THROW(dequantize_cpu(b, serial), Error);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
      for (int bits : {8, 4}) {
        for (int64_t n : {0, 1, 31, 32, 33, 1000, 65537}) cases.push_back({b, d, bits, n});
      }
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, bits, n] = info.param;
  return std::string(name(backend)) + "_" + name(dtype) + "_" + std::to_string(bits) + "bits_n" +
         std::to_string(n);
}
INSTANTIATE_TEST_SUITE_P(All, QuantizeTest, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace troupe
