#include "troupe/ops/low_bit.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "troupe/ops/grouped_gemm.h"
#include "troupe/ops/support/kept.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

constexpr LowBitFormat kLowBitFormats[] = {LowBitFormat::kNf4, LowBitFormat::kInt8,
                                           LowBitFormat::kFp8, LowBitFormat::kMxfp4};
constexpr int64_t kLowBitOut = 24, kLowBitIn = 256;

// Of |x^ - x|, in parts of a group's largest element.
double low_bit_error(LowBitFormat format) {
  switch (format) {
    case LowBitFormat::kNf4: return 0.152;
    case LowBitFormat::kInt8: return 1 / 254.;
    case LowBitFormat::kFp8: return 1 / 16.;
    case LowBitFormat::kMxfp4: return 1 / 4.;
  }
  return 0;
}

int64_t stored_bytes(const TensorList& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& t : tensors) bytes += static_cast<int64_t>(t.nbytes());
  return bytes;
}

class LowBitOp : public testing::DeviceTest {
 protected:
  // 0, 3, 3, 11: the second expert has no rows.
  at::Tensor offsets() const { return at::tensor({0, 3, 3, 11}, at::kInt).to(device().place); }
};

TEST_P(LowBitOp, Q9_ReadsBackWithinTheFormatsError) {
  for (const LowBitFormat format : kLowBitFormats) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor x = at::randn({3, kLowBitIn, kLowBitOut}, device()).to(type).transpose(1, 2);
      const LowBit w = low_bit_pack(x, format);
      const int64_t group = low_bit_group(format);
      EXPECT_EQ(w.scales.sizes(), (at::IntArrayRef{3, kLowBitOut, kLowBitIn / group}));
      EXPECT_EQ(stored_bytes({w.values, w.scales}), low_bit_bytes(format, x.numel()));
      const at::Tensor back = low_bit_unpack(w, format, type);
      EXPECT_EQ(back.scalar_type(), type);
      EXPECT_EQ(back.sizes(), x.sizes());
      const at::Tensor error = (back.to(at::kFloat) - x.to(at::kFloat)).abs();
      const at::Tensor largest = x.to(at::kFloat)
                                     .abs()
                                     .reshape({3, kLowBitOut, -1, group})
                                     .amax(-1)
                                     .repeat_interleave(group, -1);
      EXPECT_TRUE(error.le(largest * (low_bit_error(format) + 8e-3)).all().item<bool>())
          << to_text(format) << ' ' << type;
    }
  }
}

TEST_P(LowBitOp, Q9_OtherTypesAreTheRoundedF32) {
  for (const LowBitFormat format : kLowBitFormats) {
    const LowBit w = low_bit_pack(at::randn({kLowBitOut, kLowBitIn}, device()), format);
    const at::Tensor wide = low_bit_unpack(w, format, at::kFloat);
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kDouble}) {
      EXPECT_TRUE(low_bit_unpack(w, format, type).equal(wide.to(type))) << to_text(format);
    }
  }
}

TEST_P(LowBitOp, Q9_ProductsAreThoseOfTheWeightThatIsReadBack) {
  for (const LowBitFormat format : kLowBitFormats) {
    const LowBit one = low_bit_pack(at::randn({kLowBitOut, kLowBitIn}, device()), format);
    const LowBit experts = low_bit_pack(at::randn({3, kLowBitOut, kLowBitIn}, device()), format);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = at::randn({2, 7, kLowBitIn}, device()).to(type).requires_grad_();
      const at::Tensor y = low_bit_linear(x, one, format);
      const at::Tensor w = low_bit_unpack(one, format, type), grad = at::randn_like(y);
      EXPECT_TRUE(y.equal(x.detach().matmul(w.t()))) << to_text(format) << ' ' << type;
      y.backward(grad);
      EXPECT_TRUE(x.grad().equal(grad.matmul(w))) << to_text(format) << ' ' << type;

      const at::Tensor rows = at::randn({12, kLowBitIn}, device()).to(type).requires_grad_();
      const at::Tensor same = rows.detach().clone().requires_grad_();
      const at::Tensor z = low_bit_grouped_gemm(rows, experts, format, offsets());
      const at::Tensor want = grouped_gemm(same, low_bit_unpack(experts, format, type), offsets());
      EXPECT_TRUE(z.equal(want)) << to_text(format) << ' ' << type;
      const at::Tensor of_z = at::randn_like(z);
      z.backward(of_z), want.backward(of_z);
      EXPECT_TRUE(rows.grad().equal(same.grad())) << to_text(format) << ' ' << type;
    }
  }
}

// The stored weight, and nothing of its unpacked size.
TEST_P(LowBitOp, Q9_BackwardKeepsTheStoredWeightAlone) {
  for (const LowBitFormat format : kLowBitFormats) {
    const LowBit one = low_bit_pack(at::randn({kLowBitOut, kLowBitIn}, device()), format);
    const LowBit experts = low_bit_pack(at::randn({3, kLowBitOut, kLowBitIn}, device()), format);
    const at::Tensor x = at::randn({11, kLowBitIn}, device()).requires_grad_();
    const at::Tensor y = low_bit_linear(x, one, format);
    EXPECT_EQ(stored_bytes(kept_for_backward(y)), low_bit_bytes(format, kLowBitOut * kLowBitIn));
    EXPECT_TRUE(kept_for_backward(y)[0].is_alias_of(one.values));
    const at::Tensor o = offsets(), z = low_bit_grouped_gemm(x, experts, format, o);
    EXPECT_EQ(stored_bytes(kept_for_backward(z)),
              low_bit_bytes(format, 3 * kLowBitOut * kLowBitIn) + static_cast<int64_t>(o.nbytes()));
    EXPECT_TRUE(kept_for_backward(z)[0].is_alias_of(experts.values));
    EXPECT_FALSE(low_bit_linear(x.detach(), one, format).requires_grad());
  }
}

TEST_P(LowBitOp, E1_NoRowsNoExpertsAndNoElements) {
  for (const LowBitFormat format : kLowBitFormats) {
    const LowBit one = low_bit_pack(at::randn({kLowBitOut, kLowBitIn}, device()), format);
    const at::Tensor x = at::randn({0, kLowBitIn}, device()).requires_grad_();
    const at::Tensor y = low_bit_linear(x, one, format);
    EXPECT_EQ(y.sizes(), (at::IntArrayRef{0, kLowBitOut}));
    y.sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());

    const LowBit experts = low_bit_pack(at::randn({2, kLowBitOut, kLowBitIn}, device()), format);
    const at::Tensor none = at::zeros({3}, device().dtype(at::kInt));
    const at::Tensor rows = at::randn({4, kLowBitIn}, device()).requires_grad_();
    const at::Tensor z = low_bit_grouped_gemm(rows, experts, format, none);
    EXPECT_TRUE(z.eq(0).all().item<bool>()) << "rows past the last expert";
    z.sum().backward();
    EXPECT_TRUE(rows.grad().eq(0).all().item<bool>());

    const LowBit empty = low_bit_pack(at::randn({0, kLowBitOut, kLowBitIn}, device()), format);
    EXPECT_EQ(low_bit_unpack(empty, format, at::kFloat).sizes(),
              (at::IntArrayRef{0, kLowBitOut, kLowBitIn}));
  }
}

TEST_P(LowBitOp, Q9_ElementsThatAreNotFiniteAreRefusedWithTheirNumber) {
  for (const LowBitFormat format : kLowBitFormats) {
    const at::Tensor x = at::randn({2, kLowBitIn}, device());
    x[0][3] = std::numeric_limits<float>::quiet_NaN();
    x[1][kLowBitIn - 1] = -std::numeric_limits<float>::infinity();
    TROUPE_EXPECT_REFUSAL(low_bit_pack(x, format), "2 of 512 are NaN or infinite");
  }
}

TROUPE_ON_DEVICES(LowBitOp);

TEST(LowBitGradient, AgreesWithTheNumericJacobian) {
  for (const LowBitFormat format : kLowBitFormats) {
    const LowBit one = low_bit_pack(at::randn({3, 128}), format);
    const LowBit experts = low_bit_pack(at::randn({3, 2, 128}), format);
    const at::Tensor offset = at::tensor({0, 2, 2, 4}, at::kInt);
    const at::Tensor x = at::randn({5, 128}, at::kDouble).requires_grad_();
    testing::expect_gradients([&](const Tensors& in) { return low_bit_linear(in[0], one, format); },
                              {x});
    testing::expect_gradients(
        [&](const Tensors& in) { return low_bit_grouped_gemm(in[0], experts, format, offset); },
        {x});
  }
}

TEST(LowBitNames, AreThoseOfRecipes) {
  for (const char* name : {"nf4", "int8", "fp8", "mxfp4"}) {
    LowBitFormat format = LowBitFormat::kNf4;
    EXPECT_TRUE(from_text(name, format));
    EXPECT_EQ(to_text(format), name);
  }
}

TEST(LowBitRefusal, NamesTheArgument) {
  const at::Tensor x = at::randn({2, 128}), offset = at::tensor({0, 1, 2}, at::kInt);
  TROUPE_EXPECT_REFUSAL(low_bit_pack(at::randn({2, 96}), LowBitFormat::kNf4), "groups of 64");
  TROUPE_EXPECT_REFUSAL(low_bit_pack(x.to(at::kDouble), LowBitFormat::kNf4), "low_bit_pack: x");
  TROUPE_EXPECT_REFUSAL(low_bit_pack(x.to(at::kInt), LowBitFormat::kInt8), "low_bit_pack: x");
  for (const LowBitFormat format : kLowBitFormats) {
    const LowBit w = low_bit_pack(x, format),
                 experts = low_bit_pack(at::randn({2, 3, 128}), format);
    const auto read = [&](const LowBit& q) { return low_bit_unpack(q, format, at::kFloat); };
    TROUPE_EXPECT_REFUSAL(read({w.values.narrow(1, 0, 5), w.scales}), "low_bit_unpack: values");
    TROUPE_EXPECT_REFUSAL(read({w.values.to(at::kInt), w.scales}), "low_bit_unpack: values");
    TROUPE_EXPECT_REFUSAL(read({w.values, w.scales.narrow(0, 0, 1)}), "low_bit_unpack: scales");
    TROUPE_EXPECT_REFUSAL(read({w.values, w.scales.to(at::kHalf)}), "low_bit_unpack: scales");
    TROUPE_EXPECT_REFUSAL(low_bit_unpack(w, format, at::kInt), "low_bit_unpack: dtype");
    TROUPE_EXPECT_REFUSAL(low_bit_linear(at::ones({2, 64}), w, format),
                          "low_bit_linear: the weight");
    TROUPE_EXPECT_REFUSAL(low_bit_linear(x, experts, format), "low_bit_linear: values");
    TROUPE_EXPECT_REFUSAL(low_bit_linear(x.to(at::kInt), w, format), "low_bit_linear: x");
    TROUPE_EXPECT_REFUSAL(low_bit_grouped_gemm(x, w, format, offset),
                          "low_bit_grouped_gemm: values");
    TROUPE_EXPECT_REFUSAL(low_bit_grouped_gemm(x, experts, format, offset.narrow(0, 0, 2)),
                          "low_bit_grouped_gemm: expert_offset");
    TROUPE_EXPECT_REFUSAL(low_bit_grouped_gemm(x, experts, format, at::tensor({0, 1, 3}, at::kInt)),
                          "expert_offset");
  }
}

}  // namespace
}  // namespace troupe
