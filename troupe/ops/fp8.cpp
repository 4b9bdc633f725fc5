#include "troupe/ops/fp8.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "troupe/kernels/fp8/fp8.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;
using Optional = std::optional<at::Tensor>;

Fp8Groups groups_of(const at::Tensor& x, int64_t rows, int64_t columns, int64_t part_rows,
                    const Optional& offset) {
  check_sizes(x, {-1, -1}, "quantize_fp8: x");
  Fp8Groups groups{.rows = rows, .columns = columns, .part_rows = part_rows};
  if (!offset.has_value()) return groups;
  check_sizes(*offset, {-1}, "quantize_fp8: expert_offset");
  check_dtype(*offset, at::kInt, "quantize_fp8: expert_offset");
  check_same_device(*offset, x, "quantize_fp8: expert_offset");
  groups.experts = offset->numel() - 1;
  return groups;
}

// With experts' offsets some rows and scales are nobody's: those bytes are 0, those scales 1.
// LONG: a schema's arguments
Two quantize_fp8_meta(const at::Tensor& x, int64_t rows, int64_t columns, int64_t part_rows,
                      const Optional& offset, const Optional& factor) {
  const Fp8Groups groups = groups_of(x, rows, columns, part_rows, offset);
  if (factor.has_value()) {
    check_sizes(*factor, {x.size(0)}, "quantize_fp8: factor");
    check_dtype(*factor, at::kFloat, "quantize_fp8: factor");
    check_same_device(*factor, x, "quantize_fp8: factor");
  }
  const auto bytes = x.options().dtype(at::kFloat8_e4m3fn), scales = x.options().dtype(at::kFloat);
  const std::vector<int64_t> sizes = {scale_rows(groups, x.size(0)),
                                      scale_columns(groups, x.size(1))};
  if (!offset.has_value()) return {at::empty(x.sizes(), bytes), at::empty(sizes, scales)};
  return {at::zeros(x.sizes(), x.options().dtype(at::kByte)).view(at::kFloat8_e4m3fn),
          at::ones(sizes, scales)};
}

// LONG: a schema's arguments
Two quantize_fp8_device(const at::Tensor& x, int64_t rows, int64_t columns, int64_t part_rows,
                        const Optional& offset, const Optional& factor) {
  Two out = quantize_fp8_meta(x, rows, columns, part_rows, offset, factor);
  Fp8Groups groups = groups_of(x, rows, columns, part_rows, offset);
  groups.offset = ptr_or_null<const int32_t>(offset, "quantize_fp8: expert_offset");
  const at::Tensor in = rowwise(x), bytes = std::get<0>(out).view(at::kByte);
  const QuantizeFp8 args{.x = view(in, "quantize_fp8: x"),
                         .factor = ptr_or_null<const float>(factor, "quantize_fp8: factor"),
                         .groups = groups,
                         .bytes = mat<uint8_t>(bytes, "quantize_fp8: bytes"),
                         .scales = mat<float>(std::get<1>(out), "quantize_fp8: scales")};
  run(x.device(), args, quantize_fp8_cpu, &CudaKernels::quantize_fp8);
  return out;
}

// LONG: a schema's arguments
at::Tensor dequantize_fp8_meta(const at::Tensor& bytes, const at::Tensor& scales,
                               at::ScalarType dtype, int64_t rows, int64_t columns,
                               int64_t part_rows, const Optional& offset) {
  const Fp8Groups groups = groups_of(bytes, rows, columns, part_rows, offset);
  check_dtype(bytes, at::kFloat8_e4m3fn, "dequantize_fp8: bytes");
  check_sizes(scales, {scale_rows(groups, bytes.size(0)), scale_columns(groups, bytes.size(1))},
              "dequantize_fp8: scales");
  check_dtype(scales, at::kFloat, "dequantize_fp8: scales");
  check_same_device(scales, bytes, "dequantize_fp8: scales");
  const auto options = bytes.options().dtype(dtype);
  return offset.has_value() ? at::zeros(bytes.sizes(), options) : at::empty(bytes.sizes(), options);
}

// LONG: a schema's arguments
at::Tensor dequantize_fp8_device(const at::Tensor& bytes, const at::Tensor& scales,
                                 at::ScalarType dtype, int64_t rows, int64_t columns,
                                 int64_t part_rows, const Optional& offset) {
  at::Tensor x = dequantize_fp8_meta(bytes, scales, dtype, rows, columns, part_rows, offset);
  Fp8Groups groups = groups_of(bytes, rows, columns, part_rows, offset);
  groups.offset = ptr_or_null<const int32_t>(offset, "dequantize_fp8: expert_offset");
  const at::Tensor b = bytes.contiguous().view(at::kByte), s = scales.contiguous();
  const DequantizeFp8 args{.bytes = mat<const uint8_t>(b, "dequantize_fp8: bytes"),
                           .scales = mat<const float>(s, "dequantize_fp8: scales"),
                           .groups = groups,
                           .x = mut_view(x, "dequantize_fp8: x")};
  run(x.device(), args, dequantize_fp8_cpu, &CudaKernels::dequantize_fp8);
  return x;
}

}  // namespace

Fp8Matrix quantize_fp8(const at::Tensor& x, const Fp8Tiles& t, const Optional& factor) {
  static const auto op = raw_op<decltype(quantize_fp8_device)>("troupe::quantize_fp8");
  auto [bytes, scales] = op(x, t.rows, t.columns, t.part_rows, t.expert_offset, factor);
  return {bytes, scales};
}

at::Tensor dequantize_fp8(const Fp8Matrix& q, const Fp8Tiles& t, at::ScalarType dtype) {
  static const auto op = raw_op<decltype(dequantize_fp8_device)>("troupe::dequantize_fp8");
  return op(q.bytes, q.scales, dtype, t.rows, t.columns, t.part_rows, t.expert_offset);
}

void define_fp8(torch::Library& m) {
  define(m,
         "quantize_fp8(Tensor x, int rows=1, int columns=0, int part_rows=0, "
         "Tensor? expert_offset=None, Tensor? factor=None) -> (Tensor, Tensor)",
         quantize_fp8_device, quantize_fp8_meta);
  define(m,
         "dequantize_fp8(Tensor bytes, Tensor scales, ScalarType dtype, int rows=1, int columns=0, "
         "int part_rows=0, Tensor? expert_offset=None) -> Tensor",
         dequantize_fp8_device, dequantize_fp8_meta);
}

}  // namespace troupe
