#include "troupe/kernels/accumulate/accumulate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Matrix;

struct Case {
  Backend backend;
  Dtype dtype;
  int64_t size;
  bool add;
};

// The elements after the last are there to see that nothing writes to them.
struct Problem {
  Problem(int64_t n, Dtype d, bool add_to) : x(d, 1, n), sum(Dtype::kF32, 1, n + 3), add(add_to) {
    x.fill_normal(1);
    sum.fill_normal(2, 1000);
  }
  Accumulate args() { return {.x = x.view(), .sum = sum.mut().as<float>().data, .add = add}; }
  Matrix x, sum;
  bool add;
};

class AccumulateTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
  static void run(const Accumulate& args) {
    testing::run(GetParam().backend, args, accumulate_cpu, TROUPE_CUDA_PATH(accumulate_cuda));
  }
  static Problem problem() { return {GetParam().size, GetParam().dtype, GetParam().add}; }
};

TEST_P(AccumulateTest, HasTheBitsOfTheReferenceAndWritesNoFurther) {
  Problem got = problem(), want = problem();
  accumulate_ref(want.args());
  run(got.args());
  EXPECT_TRUE(got.sum.same_bits(want.sum));
}

TEST_P(AccumulateTest, ANanStaysWhereItIs) {
  Problem p = problem(), clean = problem();
  if (p.x.cols() < 2) GTEST_SKIP() << "no place for it";
  const int64_t at = p.x.cols() / 2;
  p.x.set(0, at, NAN);
  run(p.args());
  run(clean.args());
  for (int64_t i = 0; i < p.x.cols(); ++i) {
    if (i == at) {
      EXPECT_TRUE(std::isnan(p.sum.get(0, i)));
    } else {
      EXPECT_EQ(p.sum.get(0, i), clean.sum.get(0, i)) << i;
    }
  }
}

TEST_P(AccumulateTest, TakesWhatLiesOnAnyElement) {
  Problem p = problem(), want = problem();
  if (p.x.cols() < 2) GTEST_SKIP() << "nothing after the first";
  const auto from = [](Problem& q) {
    Accumulate a = q.args();
    a.x.data = static_cast<const char*>(a.x.data) + size_bytes(a.x.dtype);
    a.x.cols -= 1;
    a.x.ld = a.x.cols;
    a.sum += 1;
    return a;
  };
  accumulate_ref(from(want));
  run(from(p));
  EXPECT_TRUE(p.sum.same_bits(want.sum));
}

TEST(Accumulate, RefusesWhatItCannotMean) {
  Problem p(8, Dtype::kBF16, false);
  Accumulate a = p.args();
  a.sum = nullptr;
  EXPECT_THROW(accumulate_cpu(a, serial), Error);
  a = p.args();
  a.x.rows = 2;
  EXPECT_THROW(accumulate_cpu(a, serial), Error);
  Matrix f64(Dtype::kF64, 1, 8);
  a = p.args();
  a.x = f64.view();
  EXPECT_THROW(accumulate_cpu(a, serial), Error);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
      for (int64_t n : {0, 1, 31, 4096, 262147, 262148}) {
        for (bool add : {false, true}) cases.push_back({b, d, n, add});
      }
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(name(info.param.backend)) + "_" + name(info.param.dtype) + "_n" +
         std::to_string(info.param.size) + (info.param.add ? "_add" : "");
}
INSTANTIATE_TEST_SUITE_P(All, AccumulateTest, ::testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace troupe
