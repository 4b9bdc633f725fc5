#include "troupe/ops/quantize.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

class QuantizeOp : public testing::DeviceTest {
 protected:
  at::Tensor counter() const { return at::zeros({1}, device().dtype(at::kLong)); }
};

TEST_P(QuantizeOp, Q2_ReadsBackWithinHalfAScale) {
  for (const int64_t bits : {8, 4}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor x = at::randn({5, 33}, device()).to(type).t();  // Flattened as it is read.
      const Quantized q = quantize(x, bits, counter());
      EXPECT_EQ(q.values.numel(), bits == 8 ? 165 : 83);
      EXPECT_EQ(q.scales.numel(), 6);
      const at::Tensor back = dequantize(q, bits, x.sym_sizes(), type);
      EXPECT_EQ(back.scalar_type(), type);
      const at::Tensor scale = q.scales.to(at::kFloat).repeat_interleave(32).narrow(0, 0, 165);
      const at::Tensor error = (back.to(at::kFloat) - x.to(at::kFloat)).abs().flatten();
      const at::Tensor room = scale / 2 + x.to(at::kFloat).abs().flatten() * 8e-3;
      EXPECT_TRUE(error.le(room).all().item<bool>());
    }
  }
}

TEST_P(QuantizeOp, Q2_CountsSaturatedGroups) {
  const at::Tensor saturated = counter();
  quantize(at::ones({64}, device()) * 1e30, 8, saturated);
  quantize(at::ones({64}, device()), 8, saturated);
  EXPECT_EQ(saturated.item<int64_t>(), 2);
}

TEST_P(QuantizeOp, E1_NoElements) {
  const at::Tensor x = at::randn({0, 4}, device());
  EXPECT_EQ(dequantize(quantize(x, 4, counter()), 4, x.sym_sizes(), at::kFloat).sizes(), x.sizes());
}

INSTANTIATE_TEST_SUITE_P(On, QuantizeOp, testing::devices(), testing::device_name);

TEST(QuantizeRefusal, NamesTheArgument) {
  const at::Tensor x = at::ones({40}), counter = at::zeros({1}, at::kLong);
  TROUPE_EXPECT_REFUSAL(quantize(x, 5, counter), "bits");
  TROUPE_EXPECT_REFUSAL(quantize(x.to(at::kInt), 8, counter), "quantize: x");
  TROUPE_EXPECT_REFUSAL(quantize(x.to(at::kDouble), 8, counter), "f64");
  TROUPE_EXPECT_REFUSAL(quantize(x, 8, at::zeros({1})), "quantize: saturated");
  const Quantized q = quantize(x, 8, counter);
  TROUPE_EXPECT_REFUSAL(dequantize(q, 8, {41}, at::kFloat), "dequantize: values");
  TROUPE_EXPECT_REFUSAL(dequantize({q.values, q.scales.narrow(0, 0, 1)}, 8, {40}, at::kFloat),
                        "dequantize: scales");
}

}  // namespace
}  // namespace troupe
