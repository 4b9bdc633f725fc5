#include "troupe/distributed/dispatch/wire.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/ops/fp8.h"

namespace troupe {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

at::Tensor rows_of(int64_t N, int64_t D, at::ScalarType type, double scale = 1) {
  at::manual_seed(7);
  return (at::randn({N, D}, at::kDouble) * scale).to(type);
}

at::Tensor there_and_back(const at::Tensor& rows_ND) {
  const at::Tensor packed = packed_rows(WireType::kInt8, rows_ND);
  const int64_t D = rows_ND.size(1);
  EXPECT_EQ(packed.scalar_type(), at::kByte);
  EXPECT_EQ(packed.sizes().vec(),
            (std::vector{rows_ND.size(0), wire_row_bytes(WireType::kInt8, D, 4)}));
  const at::Tensor back = unpacked_rows(WireType::kInt8, packed, D, rows_ND.scalar_type());
  EXPECT_EQ(back.sizes(), rows_ND.sizes());
  EXPECT_EQ(back.scalar_type(), rows_ND.scalar_type());
  EXPECT_TRUE(back.is_contiguous());
  return back;
}

// The largest |x| of each element's 32, [N, D].
at::Tensor largest_near(const at::Tensor& x_ND) {
  const int64_t N = x_ND.size(0), D = x_ND.size(1), G = (D + 31) / 32;
  const at::Tensor whole = at::constant_pad_nd(x_ND.abs(), {0, 32 * G - D});
  const at::Tensor most = whole.reshape({N, G, 32}).amax(2, true);
  return most.expand({N, G, 32}).reshape({N, 32 * G}).narrow(1, 0, D);
}

TEST(Wire, Q4_ARowIsOneByteAnElementAndOneInSixteenMore) {
  EXPECT_EQ(wire_row_bytes(WireType::kNative, 2048, 2), 4096);
  EXPECT_EQ(wire_row_bytes(WireType::kInt8, 2048, 2), 2048 + 128);
  EXPECT_EQ(wire_row_bytes(WireType::kInt8, 2048, 4), 2048 + 128);
  EXPECT_EQ(wire_row_bytes(WireType::kInt8, 33, 2), 34 + 4 + 2);
}

TEST(Wire, Q4_TheErrorIsHalfAStepOf32ElementsAtAnyScale) {
  const struct {
    at::ScalarType type;
    double rounding;
  } types[] = {{at::kDouble, 1e-7}, {at::kFloat, 1e-7}, {at::kBFloat16, 4e-3}, {at::kHalf, 5e-4}};
  for (const auto& [type, rounding] : types) {
    for (const int64_t D : {1, 8, 32, 33, 100, 256}) {
      for (const double scale : {1., 1e-4, 3e4, 1e-12, 1e-30, 1e30}) {
        if (type == at::kHalf && (scale < 1e-3 || scale > 1e3)) continue;
        const at::Tensor rows = rows_of(17, D, type, scale), back = there_and_back(rows);
        const at::Tensor x = rows.to(at::kDouble), off = (back.to(at::kDouble) - x).abs();
        const at::Tensor step = largest_near(x) * (1.0001 / 127);
        EXPECT_TRUE(off.le(step / 2 + x.abs() * rounding).all().item<bool>())
            << at::toString(type) << " D " << D << " scale " << scale;
        if (D >= 32) {
          EXPECT_LT((off.norm() / x.norm()).item<double>(), 1e-2);
        }
      }
    }
  }
}

// A row whose elements are of very different sizes, and rows beside it.
TEST(Wire, Q4_RowsAndGroupsHaveScalesOfTheirOwn) {
  const at::Tensor rows = rows_of(4, 64, at::kFloat);
  rows.narrow(0, 1, 1).mul_(1e-20);
  rows[2].narrow(0, 32, 32).mul_(1e-3);
  const at::Tensor back = there_and_back(rows);
  for (int64_t n = 0; n < 4; ++n) {
    for (const int64_t from : {0, 32}) {
      const at::Tensor x = rows[n].narrow(0, from, 32), b = back[n].narrow(0, from, 32);
      EXPECT_LT(((b - x).norm() / x.norm()).item<double>(), 1e-2) << n << ' ' << from;
    }
  }
  for (int64_t n = 0; n < 4; ++n) {  // alone or in company: the same bytes
    const at::Tensor alone = packed_rows(WireType::kInt8, rows.narrow(0, n, 1));
    EXPECT_TRUE(alone.equal(packed_rows(WireType::kInt8, rows).narrow(0, n, 1))) << n;
    EXPECT_TRUE(alone.equal(packed_rows(WireType::kInt8, rows, at::full({1}, n, at::kLong)))) << n;
  }
}

TEST(Wire, Q4_ZerosStayZerosAndNoRowsAreNone) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor zeros = at::zeros({3, 40}, type);
    EXPECT_TRUE(there_and_back(zeros).equal(zeros));
    EXPECT_TRUE(packed_rows(WireType::kInt8, zeros).narrow(1, 0, 44).eq(0).all().item<bool>());
    EXPECT_EQ(there_and_back(at::zeros({0, 40}, type)).size(0), 0);
    // What pads a rank's rows in an all-gather.
    EXPECT_TRUE(
        unpacked_rows(WireType::kInt8, at::zeros({3, 44}, at::kByte), 40, type).equal(zeros));
  }
  // Too small for a normal float: 0, or within a step of it.
  const at::Tensor tiny = at::full({1, 8}, 1e-42, at::kFloat);
  EXPECT_LE((there_and_back(tiny) - tiny).abs().max().item<double>(), std::ldexp(1, -127));
}

TEST(Wire, Q4_ANaNOrInfinityTakesItsRowAndNoOther) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const double bad : {kNaN, kInf, -kInf}) {
      for (const int64_t at : {0, 31, 39, 69}) {
        const at::Tensor rows = rows_of(5, 70, type);
        rows[2][at].fill_(bad);
        const at::Tensor back = there_and_back(rows);
        EXPECT_TRUE(back[2].isnan().all().item<bool>()) << bad << " at " << at;
        const at::Tensor others = at::cat({back.narrow(0, 0, 2), back.narrow(0, 3, 2)});
        EXPECT_TRUE(others.isfinite().all().item<bool>()) << bad << " at " << at;
      }
    }
  }
  const at::Tensor zeros = at::zeros({1, 8});
  zeros[0][3].fill_(kNaN);
  EXPECT_TRUE(there_and_back(zeros).isnan().all().item<bool>());
}

at::Tensor in_fp8(const at::Tensor& rows_ND) {
  const at::Tensor packed = packed_rows(WireType::kFp8, rows_ND);
  EXPECT_EQ(packed.size(1), wire_row_bytes(WireType::kFp8, rows_ND.size(1), 4));
  return unpacked_rows(WireType::kFp8, packed, rows_ND.size(1), rows_ND.scalar_type());
}

// The values that train.fp8's experts multiply, and they make the same of them again.
TEST(Wire, Q8_33_RowsInFp8AreWhatExpertsIn8BitsMakeOfThem) {
  EXPECT_EQ(wire_row_bytes(WireType::kFp8, 2048, 2), 2048 + 16);
  EXPECT_EQ(wire_row_bytes(WireType::kFp8, 33, 4), 36 + 4 + 8);
  const Fp8Tiles whole_rows{};
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t D : {1, 33, 128, 200}) {
      for (const double scale : {1., 1e-12, 1e12}) {
        const at::Tensor rows = rows_of(300, D, type, scale), back = in_fp8(rows);
        const auto rounded = [&](const at::Tensor& x) {
          return dequantize_fp8(quantize_fp8(x, whole_rows), whole_rows, type);
        };
        EXPECT_TRUE(back.equal(rounded(rows))) << at::toString(type) << ' ' << D << ' ' << scale;
        EXPECT_TRUE(back.equal(rounded(back))) << at::toString(type) << ' ' << D << ' ' << scale;
        EXPECT_TRUE(back.equal(in_fp8(back))) << at::toString(type) << ' ' << D << ' ' << scale;
        EXPECT_FALSE(back.equal(rows));
      }
    }
  }
}

TEST(Wire, Q8_33_ZerosStayZerosAndANaNTakesItsRowAlone) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor zeros = at::zeros({3, 40}, type);
    EXPECT_TRUE(in_fp8(zeros).equal(zeros));
    EXPECT_EQ(in_fp8(at::zeros({0, 40}, type)).size(0), 0);
    // What pads a rank's rows in an all-gather.
    const at::Tensor none = at::zeros({3, 48}, at::kByte);
    EXPECT_TRUE(unpacked_rows(WireType::kFp8, none, 40, type).equal(zeros));
    for (const double bad : {kNaN, kInf, -kInf}) {
      const at::Tensor rows = rows_of(3, 40, type);
      rows[1][39].fill_(bad);
      const at::Tensor back = in_fp8(rows);
      EXPECT_TRUE(back[1].isnan().all().item<bool>()) << bad;
      EXPECT_TRUE(back[0].isfinite().all().item<bool>()) << bad;
      EXPECT_TRUE(back[2].isfinite().all().item<bool>()) << bad;
    }
  }
}

TEST(Wire, RefusesToPackRowsThatTravelAsTheyAre) {
  EXPECT_THROW(packed_rows(WireType::kNative, at::zeros({2, 8})), Error);
}

TEST(Wire, RefusesBytesOfAnotherWidth) {
  EXPECT_THROW(unpacked_rows(WireType::kInt8, at::zeros({2, 14}, at::kByte), 9, at::kFloat), Error);
}

}  // namespace
}  // namespace troupe
