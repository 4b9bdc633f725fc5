#include "troupe/kernels/low_bit/low_bit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/kernels/low_bit/problem_test.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

constexpr LowBitFormat kFormats[] = {LowBitFormat::kNf4, LowBitFormat::kInt8, LowBitFormat::kFp8,
                                     LowBitFormat::kMxfp4};

const char* format_name(LowBitFormat format) {
  constexpr const char* kNames[] = {"nf4", "int8", "fp8", "mxfp4"};
  return kNames[static_cast<int>(format)];
}

struct Case {
  Backend backend;
  Dtype dtype;
  LowBitFormat format;
  int64_t groups;
};

struct Problem : low_bit_detail::LowBitProblem {
  Problem(int64_t groups, Dtype dtype, LowBitFormat f)
      : LowBitProblem(groups * low_bit_group(f), dtype, f), back(dtype, 1, x.cols()) {
    std::fill_n(scales.data(), scales.size(), -1.0f);
    std::fill_n(exponents.data(), exponents.size(), uint8_t{0});
  }
  LowBitUnpack unpack() { return unpack_to(back.mut()); }
  double largest_from(int64_t begin) {
    double largest = 0;
    for (int64_t j = begin; j < begin + group; ++j) {
      largest = std::max(largest, std::abs(x.get(0, j)));
    }
    return largest;
  }
  Matrix back;
};

void run_unpack(Backend backend, Problem& p) {
  testing::run(backend, p.unpack(), low_bit_unpack_cpu, TROUPE_CUDA_PATH(low_bit_unpack_cuda));
}
void run(Backend backend, Problem& p) {
  testing::run(backend, p.pack(), low_bit_pack_cpu, TROUPE_CUDA_PATH(low_bit_pack_cuda));
  run_unpack(backend, p);
}

void expect_same_bytes(Problem& got, Problem& want) {
  for (size_t i = 0; i < want.values.size(); ++i) {
    ASSERT_EQ(int{got.values[i]}, int{want.values[i]}) << "byte " << i;
  }
  for (size_t i = 0; i < want.scales.size(); ++i) {
    ASSERT_EQ(got.scales[i], want.scales[i]) << "scale " << i;
    ASSERT_EQ(int{got.exponents[i]}, int{want.exponents[i]}) << "exponent " << i;
  }
  EXPECT_EQ(got.non_finite[0], want.non_finite[0]);
}

// t of the element that makes a scale; mxfp4's is no number of it.
double largest_code(LowBitFormat format) {
  switch (format) {
    case LowBitFormat::kNf4: return 1;
    case LowBitFormat::kInt8: return 127;
    case LowBitFormat::kFp8: return 448;
    case LowBitFormat::kMxfp4: return 7.5;
  }
  return 0;
}

// nf4: between each two neighbors of its table. Others: eighths, among them all ties below 8.
std::vector<double> ties_of(LowBitFormat format) {
  std::vector<double> ties;
  if (format == LowBitFormat::kNf4) {
    Problem table(1, Dtype::kF32, format);
    for (int i = 0; i < 8; ++i)
      table.values[static_cast<size_t>(i)] = static_cast<uint8_t>(34 * i + 1);
    table.scales[0] = 1;
    low_bit_unpack_ref(table.unpack());
    for (int64_t i = 1; i < 16; ++i) {
      ties.push_back((table.back.get(0, i - 1) + table.back.get(0, i)) / 2);
    }
    return ties;
  }
  const double range = std::min(8.0, largest_code(format));
  for (double t = -range; t <= range; t += 0.125) ties.push_back(t);
  return ties;
}

class LowBitTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
  Problem problem() const { return {GetParam().groups, GetParam().dtype, GetParam().format}; }

  // Fills x, runs this path and the reference, and compares bytes and values read back.
  void expect_agreement(const std::function<double(Problem&, int64_t)>& fill) {
    Problem got = problem(), want = problem();
    for (Problem* p : {&got, &want}) {
      p->x.each([&](int64_t, int64_t i) { p->x.set(0, i, fill(*p, i)); });
    }
    run(GetParam().backend, got);
    low_bit_pack_ref(want.pack());
    low_bit_unpack_ref(want.unpack());
    expect_same_bytes(got, want);
    testing::expect_near(got.back, want.back, testing::Tolerance{0, 0});
  }
};

TEST_P(LowBitTest, Q9_BytesAreTheReferencesExactly) {
  expect_agreement([](Problem& p, int64_t i) { return p.x.get(0, i); });
}

// A group's largest element makes the scale a number of few bits; the others are ties of the format
// and their neighbors.
TEST_P(LowBitTest, Q9_TiesAndTheirNeighbors) {
  const LowBitFormat format = GetParam().format;
  const double scale = format == LowBitFormat::kNf4     ? 1
                       : format == LowBitFormat::kMxfp4 ? 0.5
                                                        : 0.75;
  const double most = largest_code(format);
  const std::vector<double> ties = ties_of(format);
  expect_agreement([&](Problem& p, int64_t i) {
    if (i % p.group == 0) return scale * most;
    const auto tie = static_cast<float>(scale * ties[static_cast<size_t>(i / 3) % ties.size()]);
    const float beside = std::nextafter(tie, i % 3 == 1 ? 100.0f : -100.0f);
    return static_cast<double>(i % 3 == 0 ? tie : beside);
  });
}

// Groups of every size that floats have, subnormals among them.
TEST_P(LowBitTest, Q9_TinyAndHugeGroups) {
  expect_agreement([](Problem& p, int64_t i) {
    const int exponent = static_cast<int>(i / p.group * 23 % 250) - 140;
    return static_cast<float>(
        std::ldexp(i % 2 == 0 ? 1.3 : -0.7, exponent - static_cast<int>(i % 5)));
  });
}

TEST_P(LowBitTest, Q9_ZerosStayZeros) {
  expect_agreement([](Problem&, int64_t i) { return i % 2 == 0 ? 0.0 : -0.0; });
  Problem p = problem();
  p.x.fill(0);
  run(GetParam().backend, p);
  p.back.each([&](int64_t, int64_t i) { ASSERT_EQ(p.back.get(0, i), 0) << "at " << i; });
}

TEST_P(LowBitTest, Q9_TheErrorIsThatOfTheFormat) {
  Problem p = problem();
  run(GetParam().backend, p);
  const double rounding = p.x.dtype() == Dtype::kF32   ? 1e-6
                          : p.x.dtype() == Dtype::kF16 ? 1e-3
                                                       : 8e-3;
  double m = 0;
  for (int64_t i = 0; i < p.x.cols(); ++i) {
    if (i % p.group == 0) m = p.largest_from(i);
    const double x = p.x.get(0, i);
    const double bound = p.format == LowBitFormat::kNf4    ? 0.152 * m
                         : p.format == LowBitFormat::kInt8 ? m / 254
                         : p.format == LowBitFormat::kFp8
                             ? std::max(std::abs(x) / 16, m / 448 / 1024)
                             : m / 4;
    ASSERT_LE(std::abs(p.back.get(0, i) - x), bound + rounding * m) << "at " << i;
  }
}

// What was read back is stored without a further error.
TEST_P(LowBitTest, Q9_PackedTwiceIsPackedOnce) {
  if (GetParam().dtype != Dtype::kF32) GTEST_SKIP() << "a half rounds what is read back";
  Problem first = problem(), second = problem();
  run(GetParam().backend, first);
  second.x.each([&](int64_t, int64_t i) { second.x.set(0, i, first.back.get(0, i)); });
  run(GetParam().backend, second);
  testing::expect_near(second.back, first.back, testing::Tolerance{1e-6, 1e-6});
}

TEST_P(LowBitTest, Q9_EachNaNAndInfinityIsCountedAndPackedAsZero) {
  if (GetParam().groups == 0) GTEST_SKIP() << "no elements";
  Problem got = problem(), want = problem();
  const int64_t last = got.x.cols() - 1;
  const auto spoil = [&](Problem& p, double bad, double other) {
    p.x.set(0, 0, bad), p.x.set(0, 5, other), p.x.set(0, last, -bad);
  };
  spoil(got, INFINITY, NAN), spoil(want, 0, 0);
  want.x.set(0, last, 0);
  got.non_finite[0] = 4;
  testing::run(GetParam().backend, got.pack(), low_bit_pack_cpu,
               TROUPE_CUDA_PATH(low_bit_pack_cuda));
  EXPECT_EQ(got.non_finite[0], 7);
  low_bit_pack_ref(want.pack());
  want.non_finite[0] = got.non_finite[0];
  expect_same_bytes(got, want);
}

// Every byte and every scale of a format, packed by others.
TEST_P(LowBitTest, Q9_AnyBytesReadBackAsTheReferenceDoes) {
  Problem got = problem(), want = problem();
  for (Problem* p : {&got, &want}) {
    for (size_t i = 0; i < p->values.size(); ++i)
      p->values[i] = static_cast<uint8_t>(i * 37 + i / 256);
    for (size_t g = 0; g < p->scales.size(); ++g) {
      p->scales[g] = std::ldexp(g % 2 == 0 ? 1.0f : -1.3f, static_cast<int>(g * 29 % 200) - 120);
      p->exponents[g] = static_cast<uint8_t>(255 - g * 7);
    }
  }
  run_unpack(GetParam().backend, got);
  low_bit_unpack_ref(want.unpack());
  testing::expect_near(got.back, want.back, testing::Tolerance{0, 0});
}

TEST_P(LowBitTest, G4_EveryRunGivesTheSameBytes) {
  Problem first = problem(), second = problem();
  run(Backend::kCpu, first);
  run(GetParam().backend, second);  // Also the CPU's and the GPU's bytes are the same.
  expect_same_bytes(second, first);
  EXPECT_TRUE(second.back.same_bits(first.back));
}

// Bytes that begin on no pack: part of a larger stack of weights.
TEST_P(LowBitTest, Q9_ValuesMayBeginAnywhere) {
  Problem whole = problem(), moved = problem();
  run(Backend::kCpu, whole);
  Buffer<uint8_t> values(whole.values.size() + 1);
  LowBitPack pack = moved.pack();
  pack.values = values.data() + 1;
  testing::run(GetParam().backend, pack, low_bit_pack_cpu, TROUPE_CUDA_PATH(low_bit_pack_cuda));
  LowBitUnpack unpack = moved.unpack();
  unpack.values = values.data() + 1;
  testing::run(GetParam().backend, unpack, low_bit_unpack_cpu,
               TROUPE_CUDA_PATH(low_bit_unpack_cuda));
  for (size_t i = 0; i < whole.values.size(); ++i) {
    ASSERT_EQ(int{values[i + 1]}, int{whole.values[i]}) << "byte " << i;
  }
  EXPECT_TRUE(moved.back.same_bits(whole.back));
}

TEST(LowBit, Q9_Bytes) {
  EXPECT_EQ(low_bit_bytes(LowBitFormat::kNf4, 64), 32 + 4);
  EXPECT_EQ(low_bit_bytes(LowBitFormat::kInt8, 128), 128 + 4);
  EXPECT_EQ(low_bit_bytes(LowBitFormat::kFp8, 256), 256 + 8);
  EXPECT_EQ(low_bit_bytes(LowBitFormat::kMxfp4, 32), 16 + 1);
  EXPECT_EQ(low_bit_bytes(LowBitFormat::kNf4, int64_t{1} << 36) * 8, (int64_t{1} << 36) * 9 / 2);
  for (const LowBitFormat format : kFormats) {
    EXPECT_EQ(low_bit_bytes(format, 0), 0);
    EXPECT_THROW(low_bit_bytes(format, 33), Error);
  }
}

// By hand, of each format's own layout.
TEST(LowBit, Q9_AGroupOfEachFormatByHand) {
  const auto packed = [](LowBitFormat format, const std::vector<double>& x) {
    Problem p(1, Dtype::kF32, format);
    p.x.fill(0);
    for (size_t i = 0; i < x.size(); ++i) p.x.set(0, static_cast<int64_t>(i), x[i]);
    low_bit_pack_cpu(p.pack(), serial);
    return p;
  };
  Problem nf4 = packed(LowBitFormat::kNf4, {2, -2, 1, 0});
  EXPECT_EQ(nf4.scales[0], 2);
  EXPECT_EQ(int{nf4.values[0]}, 0xf0);  // 1 is code 15, -1 code 0; the even one is high
  EXPECT_EQ(int{nf4.values[1]}, 0xc7);  // 0.5 is nearest to 0.4407, code 12; 0 is code 7
  Problem int8 = packed(LowBitFormat::kInt8, {254, -254, 3, -5});
  EXPECT_EQ(int8.scales[0], 2);
  EXPECT_EQ(int{int8.values[0]}, 127);
  EXPECT_EQ(int{int8.values[1]}, 256 - 127);
  EXPECT_EQ(int{int8.values[2]}, 2);        // 1.5
  EXPECT_EQ(int{int8.values[3]}, 256 - 2);  // -2.5
  Problem fp8 = packed(LowBitFormat::kFp8, {896, -896, 2, 0});
  EXPECT_EQ(fp8.scales[0], 2);
  EXPECT_EQ(int{fp8.values[0]}, 0x7e);
  EXPECT_EQ(int{fp8.values[1]}, 0xfe);
  EXPECT_EQ(int{fp8.values[2]}, 0x38);
  Problem mxfp4 = packed(LowBitFormat::kMxfp4, {12, -12, 5, -1.5});
  EXPECT_EQ(int{mxfp4.exponents[0]}, 127 + 1);
  EXPECT_EQ(int{mxfp4.values[0]}, 0xf7);  // the even one is low
  EXPECT_EQ(int{mxfp4.values[1]}, 0xa4);  // 2.5 goes to 2, -0.75 to -1
}

TEST(LowBit, RefusesWhatItCannotMean) {
  for (const LowBitFormat format : kFormats) {
    Problem p(2, Dtype::kF32, format);
    const auto refused = [&](auto&& spoil) {
      LowBitPack a = p.pack();
      spoil(a);
      EXPECT_THROW(low_bit_pack_cpu(a, serial), Error) << format_name(format);
    };
    refused([](LowBitPack& a) { a.values = nullptr; });
    refused([](LowBitPack& a) { a.scales = nullptr, a.exponents = nullptr; });
    refused([&](LowBitPack& a) { a.scales = p.scales.data(), a.exponents = p.exponents.data(); });
    refused([](LowBitPack& a) { a.non_finite = nullptr; });
    refused([](LowBitPack& a) { a.x.rows = 2; });
    refused([](LowBitPack& a) { --a.x.cols; });
    refused([](LowBitPack& a) { a.x.dtype = Dtype::kF64; });
    LowBitUnpack b = p.unpack();
    b.values = nullptr;
    EXPECT_THROW(low_bit_unpack_cpu(b, serial), Error);
    b = p.unpack();
    std::swap(b.x.rows, b.x.cols);
    EXPECT_THROW(low_bit_unpack_cpu(b, serial), Error);
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
      for (LowBitFormat format : kFormats) {
        for (int64_t groups : {0, 1, 2, 37, 613}) cases.push_back({b, d, format, groups});
      }
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, format, groups] = info.param;
  return std::string(name(backend)) + "_" + name(dtype) + "_" + format_name(format) + "_groups" +
         std::to_string(groups);
}
INSTANTIATE_TEST_SUITE_P(All, LowBitTest, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace troupe
