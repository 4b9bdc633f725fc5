#include "troupe/ops/wire_rows.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/kernels/wire_rows/wire_rows.h"
#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

class WireRowsOp : public testing::DeviceTest {};

TEST_P(WireRowsOp, Q4_AnIndexTakesRowsAndDevicesAgreeInAllBytes) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t D : {1, 33, 72, 256}) {
      const at::Tensor x = at::randn({30, D}).to(type), index = at::randint(30, {71}, at::kLong);
      const at::Tensor on = x.to(device()), some = pack_rows(on, index.to(device()));
      EXPECT_EQ(some.scalar_type(), at::kByte);
      EXPECT_EQ(some.size(1), wire_row(D).bytes);
      EXPECT_TRUE(at::equal(some, pack_rows(on.index_select(0, index.to(device())))));
      EXPECT_TRUE(at::equal(some.cpu(), pack_rows(x, index)));
      const at::Tensor back = unpack_rows(some, D, type);
      EXPECT_TRUE(at::equal(back.cpu(), unpack_rows(some.cpu(), D, type)));
      EXPECT_EQ(back.scalar_type(), type);
      EXPECT_LT((back.cpu() - x.index_select(0, index)).abs().max().item<double>(), 0.03);
    }
  }
}

TEST_P(WireRowsOp, Q8_33_InE4m3DevicesAgreeInAllBytesAndAnIndexTakesRows) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t D : {1, 33, 72, 256}) {
      const at::Tensor x = at::randn({30, D}).to(type), index = at::randint(30, {71}, at::kLong);
      const at::Tensor some = pack_rows(x.to(device()), index.to(device()), WireCode::kE4m3);
      EXPECT_EQ(some.size(1), wire_row(D, WireCode::kE4m3).bytes);
      EXPECT_TRUE(at::equal(some.cpu(), pack_rows(x, index, WireCode::kE4m3)));
      EXPECT_TRUE(at::equal(some.cpu(), pack_rows(x.index_select(0, index), {}, WireCode::kE4m3)));
      const at::Tensor back = unpack_rows(some, D, type, WireCode::kE4m3);
      EXPECT_TRUE(at::equal(back.cpu(), unpack_rows(some.cpu(), D, type, WireCode::kE4m3)));
      const at::Tensor want = x.index_select(0, index);
      EXPECT_LT((back.cpu() - want).abs().max().item<double>(), 0.3);  // half of a step
      EXPECT_FALSE(at::equal(back.cpu(), want));
    }
  }
}

// Columns of a wider tensor, a transposed one, one row expanded: what gradients come as.
TEST_P(WireRowsOp, Q4_TakesAnyStrides) {
  const at::Tensor wide = at::randn({40, 96}, device()), row = at::randn({1, 64}, device());
  for (const at::Tensor& x : {wide.narrow(1, 3, 64), wide.t(), row.expand({9, 64})}) {
    EXPECT_TRUE(at::equal(pack_rows(x), pack_rows(x.contiguous())));
    const at::Tensor packed = pack_rows(x),
                     twice = at::zeros({2 * x.size(0), packed.size(1)}, device().dtype(at::kByte));
    twice.slice(0, 0, {}, 2).copy_(packed);
    EXPECT_TRUE(at::equal(unpack_rows(twice.slice(0, 0, {}, 2), x.size(1), at::kFloat),
                          unpack_rows(packed, x.size(1), at::kFloat)));
  }
}

TEST_P(WireRowsOp, Q4_OfNoRowsIsNone) {
  const at::Tensor none = at::zeros({0}, device().dtype(at::kLong));
  for (const int64_t T : {0, 3}) {
    const at::Tensor packed = pack_rows(at::zeros({T, 40}, device()), none);
    EXPECT_EQ(packed.sizes().vec(), (std::vector<int64_t>{0, 44}));
    EXPECT_EQ(unpack_rows(packed, 40, at::kHalf).sizes().vec(), (std::vector<int64_t>{0, 40}));
  }
  EXPECT_EQ(unpack_rows(pack_rows(at::zeros({3, 0}, device())), 0, at::kFloat).size(0), 3);
}

TROUPE_ON_DEVICES(WireRowsOp);

TEST(WireRowsRefusal, NamesTheArgument) {
  const at::Tensor x = at::zeros({4, 8}), index = at::zeros({2}, at::kLong);
  TROUPE_EXPECT_REFUSAL(pack_rows(x.to(at::kInt)), "pack_rows: x");
  TROUPE_EXPECT_REFUSAL(pack_rows(x.unsqueeze(0)), "pack_rows: x");
  TROUPE_EXPECT_REFUSAL(pack_rows(x, index.to(at::kInt)), "pack_rows: index");
  TROUPE_EXPECT_REFUSAL(pack_rows(x, index.unsqueeze(1)), "pack_rows: index");
  TROUPE_EXPECT_REFUSAL(pack_rows(x, at::full({1}, 4, at::kLong)), "index");
  const at::Tensor packed = pack_rows(x);
  TROUPE_EXPECT_REFUSAL(unpack_rows(packed, 20, at::kFloat), "unpack_rows: packed");
  TROUPE_EXPECT_REFUSAL(unpack_rows(packed, -1, at::kFloat), "unpack_rows: width");
  TROUPE_EXPECT_REFUSAL(unpack_rows(packed.to(at::kInt), 8, at::kFloat), "unpack_rows: packed");
  TROUPE_EXPECT_REFUSAL(unpack_rows(packed, 8, at::kInt), "unpack_rows: out");
  TROUPE_EXPECT_REFUSAL(unpack_rows(packed, 8, at::kFloat, WireCode::kE4m3), "unpack_rows: packed");
}

}  // namespace
}  // namespace troupe
