// MegaBlocks' operators end to end, on its own parameters: sort, histogram, cumsum, then gather and
// scatter in their three forms, against loops in ATen.
#include "troupe/ops/compat/gather.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "troupe/core/number/round.h"
#include "troupe/kernels/radix_sort/radix_sort.h"
#include "troupe/ops/compat/cumsum.h"
#include "troupe/ops/compat/histogram.h"
#include "troupe/ops/compat/radix_sort.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

struct Shape {
  int64_t T, D, E, K;
};

// What MegaBlocks hands to its operators.
struct Metadata {
  Metadata(const Shape& s, const at::Device& device) {
    const auto ints = at::TensorOptions().dtype(at::kInt).device(device);
    const at::Tensor expert = at::randint(0, s.E, {s.T * s.K}, ints);
    indices = std::get<1>(radix_sort(expert, 31));
    const at::Tensor counts = troupe::histogram(expert, s.E);
    bins = inclusive_cumsum(counts, 0);
    padded_bins = inclusive_cumsum((counts + 127).floor_divide(128).mul(128).to(at::kInt), 0);
  }
  at::Tensor indices, bins, padded_bins;
};

enum class Form { kPlain, kPadded, kBinned };

// The row of every sorted position, or -1: MegaBlocks' loop over the bins.
std::vector<int64_t> rows_of(const Metadata& m, Form form, int64_t capacity) {
  const at::Tensor bins = m.bins.cpu(), padded = m.padded_bins.cpu();
  std::vector<int64_t> rows;
  for (int64_t e = 0, i = 0; e < bins.size(0); ++e) {
    const int64_t begin = i, end = bins[e].item<int64_t>();
    const int64_t first = form == Form::kPlain    ? begin
                          : form == Form::kBinned ? e * capacity
                          : e == 0                ? 0
                                                  : padded[e - 1].item<int64_t>();
    for (; i < end; ++i) {
      const bool fits = form != Form::kBinned || i - begin < capacity;
      rows.push_back(fits ? first + i - begin : -1);
    }
  }
  return rows;
}

class GatherTest : public testing::DeviceTest {
 protected:
  void expect_agreement(const Shape& s, Form form, at::ScalarType type = at::kHalf) const {
    const Metadata m(s, device());
    const int64_t C = std::max<int64_t>(1, s.T * s.K / s.E);
    const at::Tensor x = at::randn({s.T, s.D}, options()).to(type);
    const at::Tensor w = at::rand({s.T * s.K}, options()).to(type);
    const at::Tensor y = form == Form::kPlain ? gather(x, m.indices, m.bins, s.K)
                         : form == Form::kPadded
                             ? padded_gather(x, m.indices, m.bins, m.padded_bins, s.K)
                             : binned_gather(x, m.indices, m.bins, C, s.K);
    const at::Tensor back = form == Form::kPlain ? scatter(y, m.indices, w, m.bins, s.K)
                            : form == Form::kPadded
                                ? padded_scatter(y, m.indices, w, m.bins, m.padded_bins, s.K)
                                : binned_scatter(y, m.indices, w, m.bins, s.K);
    const auto [rows, sums] = by_loops(s, m, rows_of(m, form, C), x, w, y.numel() / s.D);
    EXPECT_TRUE(y.cpu().reshape({-1, s.D}).equal(rows)) << s.T << " " << s.E << " " << s.K;
    EXPECT_TRUE(back.cpu().to(at::kDouble).allclose(sums, 5e-3, 1e-3)) << s.T << " " << s.E;
  }

  static std::pair<at::Tensor, at::Tensor> by_loops(const Shape& s, const Metadata& m,
                                                    const std::vector<int64_t>& row_of,
                                                    const at::Tensor& x_in, const at::Tensor& w_in,
                                                    int64_t num_rows) {
    const at::Tensor x = x_in.cpu(), w = w_in.cpu().to(at::kDouble), indices = m.indices.cpu();
    at::Tensor rows = at::zeros({num_rows, s.D}, x.options());
    at::Tensor sums = at::zeros({s.T, s.D}, at::kDouble);
    for (int64_t i = 0; i < static_cast<int64_t>(row_of.size()); ++i) {
      if (row_of[i] < 0) continue;
      const auto slot = indices.const_data_ptr<int32_t>()[i];
      rows[row_of[i]].copy_(x[slot / s.K]);
      sums[slot / s.K].add_(x[slot / s.K].to(at::kDouble) * w[slot]);
    }
    return {rows, sums};
  }
};

constexpr Shape kShapes[] = {{4, 2, 2, 1},      {4, 2, 2, 2},    {4, 2, 2, 4},
                             {256, 1, 4, 2},    {256, 1, 64, 4}, {256, 48, 64, 2},
                             {256, 48, 128, 4}, {64, 1536, 4, 4}};

TEST_P(GatherTest, P4_PlainIsMegaBlocks) {
  for (const Shape& s : kShapes) expect_agreement(s, Form::kPlain);
}
TEST_P(GatherTest, P4_PaddedIsMegaBlocks) {
  for (const Shape& s : kShapes) expect_agreement(s, Form::kPadded);
}
TEST_P(GatherTest, P4_BinnedIsMegaBlocks) {
  for (const Shape& s : kShapes) expect_agreement(s, Form::kBinned);
}

// MegaBlocks' padded forms of width 1 at their largest size.
TEST_P(GatherTest, P4_PaddedOfWidthOne) {
  expect_agreement({2048, 1, 128, 4}, Form::kPadded);
}

TEST_P(GatherTest, E1_EmptyInput) {
  for (Form form : {Form::kPlain, Form::kPadded, Form::kBinned}) {
    expect_agreement({0, 8, 4, 2}, form, at::kFloat);
  }
}
TROUPE_ON_DEVICES(GatherTest);

TEST(Gather, AgreesWithTheNumericJacobian) {
  const Shape s{5, 2, 3, 2};
  const Metadata m(s, at::kCPU);
  const auto x = at::randn({5, 2}, at::kDouble).requires_grad_();
  const auto w = at::randn({10}, at::kDouble).requires_grad_();
  const auto check = [&](auto&& f) { testing::expect_gradients(f, {x, w}); };
  check([&](const Tensors& in) {
    return scatter(gather(in[0], m.indices, m.bins, 2), m.indices, in[1], m.bins, 2);
  });
  check([&](const Tensors& in) {
    const at::Tensor y = padded_gather(in[0], m.indices, m.bins, m.padded_bins, 2);
    return padded_scatter(y, m.indices, in[1], m.bins, m.padded_bins, 2);
  });
  check([&](const Tensors& in) {
    const at::Tensor y = binned_gather(in[0], m.indices, m.bins, 2, 2);
    return binned_scatter(y, m.indices, in[1], m.bins, 2);
  });
}

TEST(Gather, RefusesMetadataThatDoesNotFit) {
  const Shape s{5, 2, 3, 2};
  const Metadata m(s, at::kCPU);
  const at::Tensor x = at::randn({5, 2});
  EXPECT_THROW(gather(x, m.indices, m.bins, 3), Error);
  EXPECT_THROW(gather(at::randn({6, 2}), m.indices, m.bins, 2), Error);
  EXPECT_THROW(gather(x, m.indices.to(at::kLong), m.bins, 2), Error);
  EXPECT_THROW(padded_gather(x, m.indices, m.bins, m.bins.slice(0, 1), 2), Error);
  EXPECT_THROW(scatter(at::randn({10, 2}), m.indices, at::rand({9}), m.bins, 2), Error);
  EXPECT_THROW(binned_gather(x, m.indices, m.bins, 0, 2), Error);
}

}  // namespace
}  // namespace troupe
