#include "troupe/ops/fp8.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "troupe/core/number/round.h"
#include "troupe/kernels/fp8/fp8.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;
using Optional = std::optional<at::Tensor>;

void check_groups(const at::Tensor& x, const Optional& offset) {
  check_sizes(x, {-1, -1}, "quantize_fp8: x");
  if (!offset.has_value()) return;
  check_sizes(*offset, {-1}, "quantize_fp8: expert_offset");
  check_dtype(*offset, at::kInt, "quantize_fp8: expert_offset");
  check_same_device(*offset, x, "quantize_fp8: expert_offset");
}

Fp8Groups groups_of(int64_t rows, int64_t columns, int64_t part_rows, const Optional& offset) {
  return {.rows = rows,
          .columns = columns,
          .part_rows = part_rows,
          .offset = ptr_or_null<const int32_t>(offset, "quantize_fp8: expert_offset"),
          .experts = offset.has_value() ? offset->numel() - 1 : 0};
}

c10::SymInt tiles(const c10::SymInt& n, int64_t each) {
  return (n + (each - 1)) / each;
}

// scale_rows and scale_columns of kernels/fp8, of sizes that may be symbols.
std::vector<c10::SymInt> scale_sizes(const at::Tensor& x, int64_t rows, int64_t columns,
                                     int64_t part_rows, const Optional& offset) {
  const c10::SymInt R = x.sym_size(0), C = x.sym_size(1);
  const c10::SymInt across = columns == kWholeRow ? C.min(1) : tiles(C, columns);
  if (offset.has_value()) return {R / rows + (offset->sym_numel() - 1), across};
  if (part_rows > 0) return {R / part_rows * ceil_div(part_rows, rows), across};
  return {tiles(R, rows), across};
}

// Which elements have a scale together.
struct TileArgs {
  int64_t rows, columns, part_rows;
  const Optional& offset;

  static auto visit(auto& a, auto&& f) {
    return f(arg("rows", a.rows, Default{1}), arg("columns", a.columns, Default{0}),
             arg("part_rows", a.part_rows, Default{0}),
             arg("expert_offset", a.offset, kDefaultNone));
  }
};

struct QuantizeFp8Args {
  const at::Tensor& x;
  TileArgs tiles;
  const Optional& factor;
  const Optional& largest;

  static constexpr const char *kName = "quantize_fp8", *kResults = "(Tensor, Tensor)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("x", a.x), group(a.tiles), arg("factor", a.factor, kDefaultNone),
             arg("largest", a.largest, kDefaultNone));
  }
};

struct DequantizeFp8Args {
  const at::Tensor& bytes;
  const at::Tensor& scales;
  at::ScalarType dtype;
  TileArgs tiles;

  static constexpr const char *kName = "dequantize_fp8", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("bytes", a.bytes), arg("scales", a.scales), arg("dtype", a.dtype), group(a.tiles));
  }
};

// With experts' offsets some rows and scales are nobody's: those bytes are 0, those scales 1.
Two quantize_fp8_meta(const QuantizeFp8Args& a) {
  const at::Tensor& x = a.x;
  const Optional &factor = a.factor, &largest = a.largest;
  const auto& [rows, columns, part_rows, offset] = a.tiles;
  check_groups(x, offset);
  if (largest.has_value()) {
    const c10::SymInt parts = part_rows > 0 ? x.sym_size(0) / part_rows : c10::SymInt(1);
    check_sizes(*largest, {parts}, "quantize_fp8: largest");
    check_dtype(*largest, at::kFloat, "quantize_fp8: largest");
    check_same_device(*largest, x, "quantize_fp8: largest");
  }
  if (factor.has_value()) {
    check_sizes(*factor, {x.sym_size(0)}, "quantize_fp8: factor");
    check_dtype(*factor, at::kFloat, "quantize_fp8: factor");
    check_same_device(*factor, x, "quantize_fp8: factor");
  }
  const auto bytes = x.options().dtype(at::kFloat8_e4m3fn), scales = x.options().dtype(at::kFloat);
  const std::vector<c10::SymInt> sizes = scale_sizes(x, rows, columns, part_rows, offset);
  if (!offset.has_value()) {
    return {at::empty_symint(x.sym_sizes(), bytes), at::empty_symint(sizes, scales)};
  }
  const auto raw = x.options().dtype(at::kByte);
  return {at::zeros_symint(x.sym_sizes(), raw).view(at::kFloat8_e4m3fn),
          at::ones_symint(sizes, scales)};
}

Two quantize_fp8_device(const QuantizeFp8Args& a) {
  const at::Tensor& x = a.x;
  const auto& [rows, columns, part_rows, offset] = a.tiles;
  Two out = quantize_fp8_meta(a);
  if (offset.has_value()) check_segments(*offset, x.size(0), "quantize_fp8: expert_offset");
  const at::Tensor in = rowwise(x), bytes = std::get<0>(out).view(at::kByte);
  const QuantizeFp8 args{.x = view(in, "quantize_fp8: x"),
                         .factor = ptr_or_null<const float>(a.factor, "quantize_fp8: factor"),
                         .largest = ptr_or_null<const float>(a.largest, "quantize_fp8: largest"),
                         .groups = groups_of(rows, columns, part_rows, offset),
                         .bytes = mat<uint8_t>(bytes, "quantize_fp8: bytes"),
                         .scales = mat<float>(std::get<1>(out), "quantize_fp8: scales")};
  run(x.device(), args, quantize_fp8_cpu, &CudaKernels::quantize_fp8);
  return out;
}

at::Tensor dequantize_fp8_meta(const DequantizeFp8Args& a) {
  const at::Tensor &bytes = a.bytes, &scales = a.scales;
  const auto& [rows, columns, part_rows, offset] = a.tiles;
  check_groups(bytes, offset);
  check_dtype(bytes, at::kFloat8_e4m3fn, "dequantize_fp8: bytes");
  const std::vector<c10::SymInt> sizes = scale_sizes(bytes, rows, columns, part_rows, offset);
  check_sizes(scales, {sizes[0], sizes[1]}, "dequantize_fp8: scales");
  check_dtype(scales, at::kFloat, "dequantize_fp8: scales");
  check_same_device(scales, bytes, "dequantize_fp8: scales");
  const auto options = bytes.options().dtype(a.dtype);
  return offset.has_value() ? at::zeros_symint(bytes.sym_sizes(), options)
                            : at::empty_symint(bytes.sym_sizes(), options);
}

at::Tensor dequantize_fp8_device(const DequantizeFp8Args& a) {
  const auto& [rows, columns, part_rows, offset] = a.tiles;
  at::Tensor x = dequantize_fp8_meta(a);
  if (offset.has_value()) check_segments(*offset, a.bytes.size(0), "dequantize_fp8: expert_offset");
  const at::Tensor b = a.bytes.contiguous().view(at::kByte), s = a.scales.contiguous();
  const DequantizeFp8 args{.bytes = mat<const uint8_t>(b, "dequantize_fp8: bytes"),
                           .scales = mat<const float>(s, "dequantize_fp8: scales"),
                           .groups = groups_of(rows, columns, part_rows, offset),
                           .x = mut_view(x, "dequantize_fp8: x")};
  run(x.device(), args, dequantize_fp8_cpu, &CudaKernels::dequantize_fp8);
  return x;
}

}  // namespace

Fp8Matrix quantize_fp8(const at::Tensor& x, const Fp8Tiles& t, const Optional& factor,
                       const Optional& largest) {
  static const auto op = raw_op<decltype(quantize_fp8_device)>();
  auto [bytes, scales] =
      op({x, {t.rows, t.columns, t.part_rows, t.expert_offset}, factor, largest});
  return {bytes, scales};
}

at::Tensor dequantize_fp8(const Fp8Matrix& q, const Fp8Tiles& t, at::ScalarType dtype) {
  static const auto op = raw_op<decltype(dequantize_fp8_device)>();
  return op({q.bytes, q.scales, dtype, {t.rows, t.columns, t.part_rows, t.expert_offset}});
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<quantize_fp8_device, quantize_fp8_meta>(m);
  define<dequantize_fp8_device, dequantize_fp8_meta>(m);
}

}  // namespace troupe
