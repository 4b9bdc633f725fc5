#include "troupe/kernels/adamw/adamw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "troupe/core/number/moment8.h"
#include "troupe/core/number/split_f32.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

struct Types {
  Dtype param, grad, moments, copy;
  bool halves = false;  // the parameter: copy and remainder
  bool codes = false;   // the moments
};

struct Case {
  Backend backend;
  Types types;
  int64_t size;
};

// core/number/moment8.h, block by block.
struct Codes {
  explicit Codes(int64_t n)
      : size(n), codes(static_cast<size_t>(n)), scales(static_cast<size_t>(moment_blocks(n))) {}

  MomentCodes view() {
    const auto blocks = static_cast<int64_t>(scales.size());
    return {{codes.data(), 1, size, size}, {scales.data(), 1, blocks, blocks}};
  }
  void read(Matrix& x, bool second) {
    for (int64_t i = 0; i < size; ++i) {
      const auto at = static_cast<size_t>(i);
      const float scale = scales[at / kMomentBlock];
      x.mut().as<float>()(0, i) =
          second ? second_moment(codes[at], scale) : first_moment(codes[at], scale);
    }
  }
  // x is m or v.
  void write(Matrix& x, Matrix& m, Matrix& v, bool second, bool dithered) {
    const auto of = [](Matrix& y, int64_t i) { return y.mut().as<float>()(0, i); };
    for (int64_t from = 0; from < size; from += kMomentBlock) {
      const int64_t to = std::min(size, from + kMomentBlock);
      uint32_t largest = 0;
      for (int64_t i = from; i < to; ++i) {
        largest = std::max(largest, std::bit_cast<uint32_t>(std::abs(of(x, i))));
      }
      const float scale = moment_scale(largest), inverse = moment_inverse(scale);
      scales[static_cast<size_t>(from / kMomentBlock)] = scale;
      for (int64_t i = from; i < to; ++i) {
        const MomentDither d =
            dithered ? moment_dither(of(m, i), of(v, i)) : MomentDither{kToNearest, kToNearest};
        codes[static_cast<size_t>(i)] = second ? second_moment_code(of(x, i), inverse, d.second)
                                               : first_moment_code(of(x, i), inverse, d.first);
      }
    }
  }
  bool same(Codes& other) {
    return std::equal(codes.data(), codes.data() + codes.size(), other.codes.data()) &&
           std::equal(scales.data(), scales.data() + scales.size(), other.scales.data());
  }
  int64_t size;
  Buffer<uint8_t> codes;
  Buffer<float> scales;
};

struct Problem {
  Problem(int64_t n, Types t)
      : types(t),
        param(t.param, 1, n),
        grad(t.grad, 1, n),
        m(t.moments, 1, n),
        v(t.moments, 1, n),
        copy(t.copy, 1, n),
        remainder(static_cast<size_t>(n)),
        m_codes(n),
        v_codes(n),
        scale(1) {
    param.fill_normal(1);
    grad.fill_normal(2);
    m.fill_normal(3, 0.1);
    v.fill_normal(4);
    v.each([&](int64_t, int64_t i) { v.set(0, i, v.get(0, i) * v.get(0, i)); });
    scale[0] = 0.37f;
    split();
  }
  AdamW args(int64_t step = 3) {
    const int64_t n = param.cols();
    return {.param = types.halves ? MutRef{} : param.mut(),
            .grad = grad.view(),
            .m = types.codes ? MutRef{} : m.mut(),
            .v = types.codes ? MutRef{} : v.mut(),
            .step = step,
            .lr = 0.01,
            .copy = types.copy == Dtype::kF64 ? MutRef{} : copy.mut(),
            .remainder = types.halves ? Mat<uint16_t>{remainder.data(), 1, n, n} : Mat<uint16_t>{},
            .m8 = types.codes ? m_codes.view() : MomentCodes{},
            .v8 = types.codes ? v_codes.view() : MomentCodes{},
            .grad_scale = scale.data(),
            .weight_decay = 0.1};
  }
  // Between `param` and the two halves of it, m and v and their codes.
  void split() {
    if (types.codes) {
      m_codes.write(m, m, v, /*second=*/false, /*dithered=*/false);
      v_codes.write(v, m, v, true, false);
    }
    if (!types.halves) return;
    param.each([&](int64_t, int64_t i) {
      const SplitF32 s = split_f32(param.mut().as<float>()(0, i));
      copy.mut().as<BF16>()(0, i).bits = s.value;
      remainder[static_cast<size_t>(i)] = s.low;
    });
  }
  Problem& joined() {
    if (types.codes) m_codes.read(m, false), v_codes.read(v, true);
    if (!types.halves) return *this;
    param.each([&](int64_t, int64_t i) {
      param.mut().as<float>()(0, i) =
          join_f32(copy.mut().as<BF16>()(0, i).bits, remainder[static_cast<size_t>(i)]);
    });
    return *this;
  }
  Types types;
  Matrix param, grad, m, v, copy;
  Buffer<uint16_t> remainder;
  Codes m_codes, v_codes;
  Buffer<float> scale;
};

void run(Backend backend, const AdamW& a) {
  testing::run(backend, a, adamw_cpu, TROUPE_CUDA_PATH(adamw_cuda));
}

class AdamWTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().types.param == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
  Problem problem() const { return {GetParam().size, GetParam().types}; }
};

TEST_P(AdamWTest, AgreesWithTheReference) {
  Problem got = problem(), want = problem();
  const bool codes = GetParam().types.codes;
  // Codes take one step: what is rounded the other way once is an eighth apart from then on.
  for (int64_t step = codes ? 3 : 1; step <= 3; ++step) {
    run(GetParam().backend, got.args(step));
    adamw_ref(want.args(step));
  }
  got.joined(), want.joined();
  if (codes) {
    testing::expect_near(got.m, want.m, {0.126, 1e-4}, "m");
    testing::expect_near(got.v, want.v, {0.126, 1e-8}, "v");
    return testing::expect_near(got.param, want.param, "param");
  }
  const bool exact = GetParam().types.moments != Dtype::kBF16;
  // A bf16 moment that was rounded the other way in one step may nearly cancel in the next.
  testing::expect_near(
      got.m, want.m, exact ? testing::tolerance(want.m.dtype()) : testing::Tolerance{1.6e-2, 1e-3},
      "m");
  testing::expect_near(got.v, want.v, "v");
  // Moments that are rounded between steps differ by a place now and then, and so do the steps.
  testing::expect_near(
      got.param, want.param,
      exact ? testing::tolerance(want.param.dtype()) : testing::Tolerance{1e-3, 1e-4}, "param");
  if (got.args().copy.data != nullptr) testing::expect_near(got.copy, want.copy, "copy");
}

TEST_P(AdamWTest, TheCopyIsTheParameterRounded) {
  Problem p = problem();
  if (p.args().copy.data == nullptr) GTEST_SKIP() << "no copy";
  run(GetParam().backend, p.args());
  p.joined();
  Matrix want(GetParam().types.copy, 1, GetParam().size);
  want.each([&](int64_t, int64_t i) { want.set(0, i, p.param.get(0, i)); });
  if (GetParam().types.halves) {  // a tie goes away from zero
    want.each([&](int64_t, int64_t i) {
      want.mut().as<BF16>()(0, i).bits = split_f32(p.param.mut().as<float>()(0, i)).value;
    });
  }
  EXPECT_TRUE(p.copy.same_bits(want));
}

TEST_P(AdamWTest, InHalvesAParameterHasTheSameBits) {
  if (!GetParam().types.halves) GTEST_SKIP() << "whole";
  Types types = GetParam().types;
  Problem halves(GetParam().size, types);
  types.halves = false;
  Problem whole(GetParam().size, types);
  for (const int64_t step : {1, 2, 3, 4}) {
    run(GetParam().backend, halves.args(step));
    run(GetParam().backend, whole.args(step));
    EXPECT_TRUE(halves.joined().param.same_bits(whole.joined().param)) << step;
  }
  EXPECT_TRUE(halves.m.same_bits(whole.m));
  EXPECT_TRUE(halves.v.same_bits(whole.v));
}

// The same step with moments in f32: the parameters have its bits, the codes are of its moments.
TEST_P(AdamWTest, CodesAreThoseOfTheMomentsInFloats) {
  if (!GetParam().types.codes) GTEST_SKIP() << "moments in floats";
  Types types = GetParam().types;
  Problem codes(GetParam().size, types);
  codes.joined();
  types.codes = false;
  Problem floats(GetParam().size, types);
  floats.m.each([&](int64_t, int64_t i) {
    floats.m.set(0, i, codes.m.get(0, i)), floats.v.set(0, i, codes.v.get(0, i));
  });
  run(GetParam().backend, codes.args());
  run(GetParam().backend, floats.args());
  EXPECT_TRUE(codes.joined().param.same_bits(floats.joined().param));
  Codes m(GetParam().size), v(GetParam().size);
  m.write(floats.m, floats.m, floats.v, /*second=*/false, /*dithered=*/true);
  v.write(floats.v, floats.m, floats.v, true, true);
  EXPECT_TRUE(codes.m_codes.same(m));
  EXPECT_TRUE(codes.v_codes.same(v));
}

TEST_P(AdamWTest, G4_EveryRunGivesTheSameBits) {
  Problem first = problem(), second = problem();
  run(GetParam().backend == Backend::kCuda ? Backend::kCuda : Backend::kCpu, first.args());
  run(GetParam().backend, second.args());
  EXPECT_TRUE(first.joined().param.same_bits(second.joined().param));
  EXPECT_TRUE(first.m.same_bits(second.m));
  EXPECT_TRUE(first.v.same_bits(second.v));
}

TEST_P(AdamWTest, AScaleThatIsNotFiniteChangesNothing) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    Problem p = problem(), untouched = problem();
    p.scale[0] = bad;
    run(GetParam().backend, p.args());
    EXPECT_TRUE(p.joined().param.same_bits(untouched.joined().param));
    EXPECT_TRUE(p.m.same_bits(untouched.m));
    EXPECT_TRUE(p.v.same_bits(untouched.v));
    EXPECT_TRUE(p.copy.same_bits(untouched.copy));
  }
}

TEST_P(AdamWTest, ConstantsInMemoryAreThoseOfTheArguments) {
  if (GetParam().types.param == Dtype::kF64) GTEST_SKIP() << "constants are floats";
  Problem got = problem(), want = problem();
  Buffer<AdamWStep<float>> constants(1);
  AdamW a = got.args(7);
  a.lr = 0.003, a.beta1 = 0.8;
  constants[0] = rounded<float>(adamw_step(a));
  AdamW b = want.args(7);
  b.lr = a.lr, b.beta1 = a.beta1;
  run(GetParam().backend, b);
  a.step = 1, a.lr = 1, a.beta1 = 0.1, a.weight_decay = 3;  // which are not read
  a.constants = constants.data();
  run(GetParam().backend, a);
  EXPECT_TRUE(got.joined().param.same_bits(want.joined().param));
  EXPECT_TRUE(got.m.same_bits(want.m));
  EXPECT_TRUE(got.v.same_bits(want.v));
}

class AdamWByHand : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
};

// By hand: p 1, g 0.5, lr 0.1, betas 0.9 and 0.95, decay 0.1, step 1 gives 0.99 - 0.1 = 0.89.
TEST_P(AdamWByHand, TheFirstStepIsLrAndTheDecayIsDecoupled) {
  Problem p(1, {Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kBF16});
  p.param.fill(1), p.grad.fill(0.5), p.m.fill(0), p.v.fill(0);
  p.scale[0] = 1;
  AdamW args = p.args(1);
  args.lr = 0.1;
  run(GetParam(), args);
  EXPECT_NEAR(p.param.get(0, 0), 0.89, 1e-7);
  EXPECT_NEAR(p.m.get(0, 0), 0.05, 1e-8);
  EXPECT_NEAR(p.v.get(0, 0), 0.0125, 1e-9);
}

TEST_P(AdamWByHand, E2_AZeroGradientDecaysAndNoMore) {
  Problem p(5, {Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kBF16});
  p.param.fill(2), p.grad.fill(0), p.m.fill(0), p.v.fill(0);
  run(GetParam(), p.args(1000000));
  EXPECT_NEAR(p.param.get(0, 4), 2 * (1 - 0.01 * 0.1), 1e-6);
  EXPECT_EQ(p.m.get(0, 4), 0);
}

// A parameter that is NaN already, and those at the ends of the range.
TEST_P(AdamWByHand, HalvesHoldEveryNumber) {
  Problem p(4, {Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kBF16, true});
  p.grad.fill(0), p.m.fill(0), p.v.fill(0);
  p.param.set(0, 0, std::bit_cast<float>(0x7f800001u));  // whose set bit is a low one
  p.param.set(0, 1, std::numeric_limits<float>::max());
  p.param.set(0, 2, -std::numeric_limits<double>::infinity());
  p.param.set(0, 3, -0x1.fffffcp-127);
  p.split();
  AdamW args = p.args(1);
  args.lr = 0;
  run(GetParam(), args);
  p.joined();
  EXPECT_TRUE(std::isnan(p.param.get(0, 0)) && std::isnan(p.copy.get(0, 0)));
  EXPECT_EQ(p.param.get(0, 1), std::numeric_limits<float>::max());
  EXPECT_EQ(p.copy.get(0, 1), INFINITY);
  EXPECT_TRUE(std::isnan(p.param.get(0, 2)));  // -inf - 0 inf
  EXPECT_EQ(p.param.get(0, 3), -0x1.fffffcp-127);
}

TEST(AdamW, AnElementInHalvesMovesTwoBytesLess) {
  const Types whole{Dtype::kF32, Dtype::kBF16, Dtype::kF32, Dtype::kBF16};
  Types halves = whole;
  halves.halves = true;
  EXPECT_EQ(bytes_moved(Problem(100, whole).args()), 2800);
  EXPECT_EQ(bytes_moved(Problem(100, halves).args()), 2600);
  halves.codes = true;
  EXPECT_EQ(bytes_moved(Problem(256, halves).args()), 256 * (2 + 8 + 4) + 16);
}

TEST(AdamW, RefusesWhatItCannotMean) {
  Problem p(8, {Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kBF16});
  const auto refused = [&](auto&& spoil) {
    AdamW a = p.args();
    spoil(a);
    EXPECT_THROW(adamw_cpu(a, serial), Error);
    EXPECT_THROW(adamw_ref(a), Error);
  };
  refused([](AdamW& a) { a.step = 0; });
  refused([](AdamW& a) { a.beta2 = 1; });
  refused([](AdamW& a) { a.eps = -1; });
  refused([](AdamW& a) { a.lr = NAN; });
  refused([](AdamW& a) { a.grad.cols = 7; });
  Problem wide(8, {Dtype::kF64, Dtype::kF64, Dtype::kF64, Dtype::kF64});
  const AdamWStep<float> constants{};
  refused([&](AdamW& a) { a = wide.args(), a.constants = &constants; });
  refused([](AdamW& a) { a.m.dtype = Dtype::kF64; });
  refused([](AdamW& a) { a.v.dtype = Dtype::kBF16; });
  refused([](AdamW& a) { a.param.dtype = Dtype::kBF16; });
  refused([](AdamW& a) { a.copy.dtype = Dtype::kF32; });
  Problem other(8, {Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kBF16, true});
  refused([&](AdamW& a) { a.remainder = other.args().remainder; });  // beside a param
  refused([&](AdamW& a) { a = other.args(), a.copy = {}; });
  refused([&](AdamW& a) { a = other.args(), a.copy.dtype = Dtype::kF16; });
  refused([&](AdamW& a) { a = other.args(), a.remainder.cols = 7; });
  refused([&](AdamW& a) { a = other.args(), a.remainder.data = nullptr; });
  Problem coded(8, {Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kBF16, false, true});
  refused([&](AdamW& a) { a.m8 = coded.args().m8, a.v8 = coded.args().v8; });  // beside m and v
  refused([&](AdamW& a) { a.v8 = coded.args().v8; });
  refused([&](AdamW& a) { a = coded.args(), a.v8 = {}; });
  refused([&](AdamW& a) { a = coded.args(), a.m8.codes.cols = 7; });
  refused([&](AdamW& a) { a = coded.args(), a.v8.scales.cols = 2; });
}

std::vector<Case> all_cases() {
  const Types types[] = {{Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kBF16},
                         {Dtype::kF32, Dtype::kBF16, Dtype::kF32, Dtype::kBF16},
                         {Dtype::kF32, Dtype::kBF16, Dtype::kBF16, Dtype::kF64},  // f64: no copy
                         {Dtype::kF32, Dtype::kF16, Dtype::kF32, Dtype::kF16},
                         {Dtype::kF64, Dtype::kF64, Dtype::kF64, Dtype::kF64},
                         {Dtype::kF32, Dtype::kBF16, Dtype::kF32, Dtype::kBF16, true},
                         {Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kBF16, true},
                         {Dtype::kF32, Dtype::kBF16, Dtype::kBF16, Dtype::kBF16, true},
                         {Dtype::kF32, Dtype::kBF16, Dtype::kF32, Dtype::kBF16, true, true},
                         {Dtype::kF32, Dtype::kF32, Dtype::kF32, Dtype::kBF16, false, true}};
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (const Types& t : types) {
      for (int64_t n : {0, 1, 31, 4096, 4097, 20011, 65536}) cases.push_back({b, t, n});
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, t, n] = info.param;
  return std::string(name(backend)) + "_" + name(t.param) + "_grad_" + name(t.grad) + "_m_" +
         name(t.moments) + (t.halves ? "_halves" : "") + (t.codes ? "_codes" : "") + "_n" +
         std::to_string(n);
}
INSTANTIATE_TEST_SUITE_P(All, AdamWTest, ::testing::ValuesIn(all_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(All, AdamWByHand, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         testing::backend_name);

}  // namespace
}  // namespace troupe
