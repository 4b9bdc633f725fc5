#include "troupe/dist/wire.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>

#include "troupe/core/check.h"
#include "troupe/kernels/quantize/quantize.h"
#include "troupe/ops/quantize.h"

namespace troupe {
namespace {

constexpr int kBits = 8;
constexpr int64_t kScaleBytes = sizeof(F16), kRowScaleBytes = sizeof(float);

int64_t padded_width(int64_t D) {
  return quantized_scales(D) * kQuantGroup;
}

// Up to whole groups, so that none has elements of two rows.
at::Tensor padded(const at::Tensor& x_ND) {
  const int64_t D = x_ND.size(1), rest = padded_width(D) - D;
  return rest == 0 ? x_ND : at::constant_pad_nd(x_ND, {0, rest});
}

// The exponent of a float alone is the power of two below it; that of NaN is infinity.
at::Tensor row_scales(const at::Tensor& rows_ND) {
  const at::Tensor most_N1 = rows_ND.abs().amax(1, true).to(at::kFloat);
  return most_N1.view(at::kInt).bitwise_and(0x7f800000).clamp_min(0x00800000).view(at::kFloat);
}

}  // namespace

int64_t wire_row_bytes(WireType wire, int64_t D, int64_t element_bytes) {
  if (wire == WireType::kNative) return D * element_bytes;
  return quantized_bytes(D, kBits) + kRowScaleBytes;
}

at::Tensor packed_rows(const at::Tensor& rows_ND) {
  const int64_t N = rows_ND.size(0), D = rows_ND.size(1);
  const at::Tensor scales_N1 = row_scales(rows_ND);
  // Finite elements of a row with a NaN become 0 here, and 0 times infinity again NaN.
  const at::Tensor x_NP = padded(rows_ND.div(scales_N1).to(at::kFloat));
  // It stays 0: no |x| is above 4.
  const at::Tensor saturated = at::zeros({1}, rows_ND.options().dtype(at::kLong));
  const Quantized q = quantize(x_NP, kBits, saturated);
  return at::cat(
      {q.values.view({N, padded_width(D)}).narrow(1, 0, D),
       q.scales.view({N, quantized_scales(D)}).view(at::kByte), scales_N1.view(at::kByte)},
      1);
}

at::Tensor unpacked_rows(const at::Tensor& packed_NB, int64_t D, at::ScalarType type) {
  const int64_t N = packed_NB.size(0), G = quantized_scales(D);
  TROUPE_CHECK(packed_NB.size(1) == wire_row_bytes(WireType::kInt8, D, 1), "-", packed_NB.size(1),
               "bytes are not a packed row of", D);
  // A copy also of one row, whose part is contiguous where it lies: at no multiple of 4 bytes.
  const auto part = [&](int64_t from, int64_t bytes) {
    return packed_NB.narrow(1, from, bytes).clone(at::MemoryFormat::Contiguous);
  };
  const Quantized q{.values = padded(part(0, D)).reshape({-1}),
                    .scales = part(D, kScaleBytes * G).view(at::kHalf).reshape({-1})};
  const at::Tensor scales_N1 = part(D + kScaleBytes * G, kRowScaleBytes).view(at::kFloat);
  const at::Tensor x_NP = dequantize(q, kBits, {N, padded_width(D)}, at::kFloat);
  return x_NP.mul_(scales_N1).narrow(1, 0, D).to(type).contiguous();
}

}  // namespace troupe
