#include "troupe/kernels/peer_combine/peer_combine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "troupe/kernels/combine/combine.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

struct Case {
  Backend backend = Backend::kCpu;
  Dtype dtype = Dtype::kF32;
  int64_t peers, each, tokens, choices, width;
};

struct Problem {
  explicit Problem(const Case& c)
      : shape(c),
        y(c.dtype, c.peers * c.each, c.width),
        out(c.dtype, c.tokens, c.width),
        place(c.tokens * c.choices) {
    y.fill_normal(3);
    out.fill(NAN);
    const int64_t rows = c.peers * c.each;
    for (size_t i = 0; i < place.size(); ++i) {
      const auto n = static_cast<int64_t>(i);
      place[i] = n % 4 == 3 || rows == 0 ? -1 : static_cast<int32_t>((7 * n + 3) % rows);
    }
  }
  PeerCombine args() {
    PeerCombine a{.peers = shape.peers,
                  .each = shape.each,
                  .choices = shape.choices,
                  .place = place.data(),
                  .out = out.mut()};
    const auto* const first = static_cast<const char*>(y.view().data);
    for (int64_t w = 0; w < shape.peers; ++w) {
      a.from[static_cast<size_t>(w)] =
          first + w * shape.each * shape.width * size_bytes(shape.dtype);
    }
    return a;
  }
  Case shape;
  Matrix y, out;
  Buffer<int32_t> place;
};

class PeerCombineTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
  static void run(Problem& p) {
    testing::run(GetParam().backend, p.args(), peer_combine_cpu,
                 TROUPE_CUDA_PATH(peer_combine_cuda));
  }
};

TEST_P(PeerCombineTest, AgreesWithTheReference) {
  Problem got(GetParam()), want(GetParam());
  run(got);
  peer_combine_ref(want.args());
  testing::expect_near(got.out, want.out);
}

// Over memory that happens to be in one piece it is kernels/combine, to the last bit.
TEST_P(PeerCombineTest, H5_HasTheBitsOfCombine) {
  const Case& c = GetParam();
  Problem got(c), want(c);
  run(got);
  const Combine one{.plan = {.tokens = c.tokens,
                             .choices = c.choices,
                             .experts = 1,
                             .rows = c.peers * c.each,
                             .slot_row = want.place.data()},
                    .y = want.y.view(),
                    .out = want.out.mut()};
  testing::run(c.backend, one, combine_cpu, TROUPE_CUDA_PATH(combine_cuda));
  EXPECT_TRUE(got.out.same_bits(want.out));
}

TEST_P(PeerCombineTest, P3_TokensWithoutRowsAreExactlyZeroAndRowsThatAreNotNamedAreNotRead) {
  Problem p(GetParam());
  p.y.fill(NAN);
  for (size_t i = 0; i < p.place.size(); ++i) p.place[i] = -1;
  run(p);
  p.out.each([&](int64_t t, int64_t d) { ASSERT_EQ(p.out.get(t, d), 0.0) << t << ", " << d; });
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
      if (b == Backend::kCuda && dtype == Dtype::kF64) continue;
      for (const Case& c : {Case{.peers = 2, .each = 9, .tokens = 9, .choices = 2, .width = 40},
                            Case{.peers = 5, .each = 13, .tokens = 7, .choices = 9, .width = 264},
                            Case{.peers = 3, .each = 4, .tokens = 11, .choices = 4, .width = 3},
                            Case{.peers = 1, .each = 1, .tokens = 1, .choices = 1, .width = 1},
                            Case{.peers = 2, .each = 3, .tokens = 0, .choices = 2, .width = 8},
                            Case{.peers = 4, .each = 0, .tokens = 3, .choices = 4, .width = 8}}) {
        out.push_back(c);
        out.back().backend = b;
        out.back().dtype = dtype;
      }
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, PeerCombineTest, ::testing::ValuesIn(cases()),
                         [](const auto& tested) {
                           const Case& c = tested.param;
                           return std::string(testing::name(c.backend)) + '_' + name(c.dtype) +
                                  '_' + std::to_string(c.peers) + 'x' + std::to_string(c.each) +
                                  '_' + std::to_string(c.tokens) + 'x' + std::to_string(c.choices) +
                                  'x' + std::to_string(c.width);
                         });

// Seen in the last bits: 1 + 2^-24 + 2^-24 is 1 in float from the left, and not from the right.
TEST(PeerCombine, P2_AddsThePlacesInOrder) {
  Problem p({.backend = Backend::kCpu,
             .dtype = Dtype::kF32,
             .peers = 3,
             .each = 1,
             .tokens = 2,
             .choices = 3,
             .width = 5});
  const double value[] = {0x1p-24, 1, 0x1p-24};
  p.y.each([&](int64_t r, int64_t d) { p.y.set(r, d, value[r]); });
  const int32_t places[] = {1, 0, 2, 0, 2, 1};
  for (size_t i = 0; i < 6; ++i) p.place[i] = places[i];
  peer_combine_cpu(p.args(), serial);
  for (int64_t d = 0; d < 5; ++d) {
    EXPECT_EQ(p.out.get(0, d), 1.0);
    EXPECT_EQ(p.out.get(1, d), 1 + 0x1p-23);
  }
}

TEST(PeerCombine, RefusesWhatIsMissing) {
  Problem p({.backend = Backend::kCpu,
             .dtype = Dtype::kBF16,
             .peers = 2,
             .each = 3,
             .tokens = 3,
             .choices = 2,
             .width = 8});
  PeerCombine a = p.args();
  a.from[1] = nullptr;
  EXPECT_THROW(peer_combine_cpu(a, serial), Error);
  a = p.args();
  a.place = nullptr;
  EXPECT_THROW(peer_combine_cpu(a, serial), Error);
  a = p.args();
  a.out.ld += 1;
  EXPECT_THROW(peer_combine_cpu(a, serial), Error);
  a = p.args();
  a.each = INT32_MAX;
  EXPECT_THROW(peer_combine_cpu(a, serial), Error);
}

}  // namespace
}  // namespace troupe
