#include "troupe/ops/quantize.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/quantize/quantize.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;

// quantized_value_bytes and quantized_scales of sizes that may be symbolic.
c10::SymInt value_bytes(const c10::SymInt& n, int64_t bits) {
  TROUPE_CHECK(bits == 8 || bits == 4, "quantize: bits must be 8 or 4; they are", bits);
  return bits == 8 ? n : (n + 1) / 2;
}
c10::SymInt scale_count(const c10::SymInt& n) {
  return (n + (kQuantGroup - 1)) / kQuantGroup;
}

Two quantize_meta(const at::Tensor& x, int64_t bits, const at::Tensor& saturated) {
  check_sizes(saturated, {1}, "quantize: saturated");
  check_dtype(saturated, at::kLong, "quantize: saturated");
  check_same_device(saturated, x, "quantize: saturated");
  const c10::SymInt n = x.sym_numel();
  return {at::empty_symint({value_bytes(n, bits)}, x.options().dtype(at::kByte)),
          at::empty_symint({scale_count(n)}, x.options().dtype(at::kHalf))};
}

Two quantize_device(const at::Tensor& x, int64_t bits, const at::Tensor& saturated) {
  Two out = quantize_meta(x, bits, saturated);
  const at::Tensor flat = x.contiguous();
  const int64_t n = flat.numel();
  const Quantize args{.x = {flat.const_data_ptr(), dtype_of_tensor(flat, "quantize: x"), 1, n, n},
                      .values = std::get<0>(out).mutable_data_ptr<uint8_t>(),
                      .scales = static_cast<F16*>(std::get<1>(out).mutable_data_ptr()),
                      .saturated = saturated.mutable_data_ptr<int64_t>(),
                      .bits = static_cast<int>(bits)};
  run(x.device(), args, quantize_cpu, &CudaKernels::quantize);
  return out;
}

at::Tensor dequantize_meta(const at::Tensor& values, const at::Tensor& scales, int64_t bits,
                           c10::SymIntArrayRef sizes, at::ScalarType dtype) {
  at::Tensor x = at::empty_symint(sizes, values.options().dtype(dtype));
  check_sizes(values, {value_bytes(x.sym_numel(), bits)}, "dequantize: values");
  check_sizes(scales, {scale_count(x.sym_numel())}, "dequantize: scales");
  check_dtype(values, at::kByte, "dequantize: values");
  check_dtype(scales, at::kHalf, "dequantize: scales");
  check_same_device(scales, values, "dequantize: scales");
  return x;
}

at::Tensor dequantize_device(const at::Tensor& values, const at::Tensor& scales, int64_t bits,
                             c10::SymIntArrayRef sizes, at::ScalarType dtype) {
  at::Tensor x = dequantize_meta(values, scales, bits, sizes, dtype);
  const at::Tensor v = values.contiguous(), s = scales.contiguous();
  const int64_t n = x.numel();
  const Dequantize args{.values = v.const_data_ptr<uint8_t>(),
                        .scales = static_cast<const F16*>(s.const_data_ptr()),
                        .x = {x.mutable_data_ptr(), dtype_of_tensor(x, "dequantize: x"), 1, n, n},
                        .bits = static_cast<int>(bits)};
  run(x.device(), args, dequantize_cpu, &CudaKernels::dequantize);
  return x;
}

}  // namespace

Quantized quantize(const at::Tensor& x, int64_t bits, const at::Tensor& saturated) {
  static const auto op = raw_op<decltype(quantize_device)>("troupe::quantize");
  auto [values, scales] = op(x, bits, saturated);
  return {values, scales};
}

at::Tensor dequantize(const Quantized& q, int64_t bits, c10::SymIntArrayRef sizes,
                      at::ScalarType dtype) {
  static const auto op = raw_op<decltype(dequantize_device)>("troupe::dequantize");
  return op(q.values, q.scales, bits, sizes, dtype);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "quantize(Tensor x, int bits, Tensor(a!) saturated) -> (Tensor, Tensor)",
         quantize_device, quantize_meta);
  define(m,
         "dequantize(Tensor values, Tensor scales, int bits, SymInt[] sizes, ScalarType dtype) "
         "-> Tensor",
         dequantize_device, dequantize_meta);
}

}  // namespace troupe
