#include "troupe/ops/low_bit.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <tuple>
#include <vector>

#include "troupe/ops/support/arg_check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using ValuesAndScales = std::tuple<at::Tensor, at::Tensor>;

LowBitFormat low_bit_format(const std::string& name, const char* op) {
  LowBitFormat format = LowBitFormat::kNf4;
  TROUPE_CHECK(from_text(name, format),
               std::string(op) + ": format must be nf4, int8, fp8 or mxfp4; it is", name);
  return format;
}

bool has_exponents(LowBitFormat format) {
  return format == LowBitFormat::kMxfp4;
}

// W as an operator's arguments give it.
struct LowBitWeight {
  const at::Tensor& values;
  const at::Tensor& scales;
  std::string format;

  static auto visit(auto& a, auto&& f) {
    return f(arg("values", a.values, Dims{"...B"}), arg("scales", a.scales, Dims{"...G"}),
             arg("format", a.format));
  }
};

// Refuses values and scales that are not of one tensor; returns its sizes.
std::vector<c10::SymInt> check_low_bit(const LowBitWeight& w, const char* op) {
  const std::string name(op);
  const LowBitFormat format = low_bit_format(w.format, op);
  const int64_t bytes = low_bit_group(format) * low_bit_bits(format) / 8;
  check_dtype(w.values, at::kByte, (name + ": values").c_str());
  check_dtype(w.scales, has_exponents(format) ? at::kByte : at::kFloat,
              (name + ": scales").c_str());
  std::vector<c10::SymInt> sizes = w.values.sym_sizes().vec();
  TROUPE_CHECK(sizes.back() % bytes == 0, name + ": values must be rows of whole groups of", bytes,
               "bytes; they are", tensor_text(w.values));
  sizes.back() = sizes.back() / bytes;
  TROUPE_CHECK(w.scales.sym_sizes() == c10::SymIntArrayRef(sizes),
               name + ": scales must have sizes", c10::SymIntArrayRef(sizes),
               ", one a group of values; they are", tensor_text(w.scales));
  sizes.back() = sizes.back() * low_bit_group(format);
  return sizes;
}

struct LowBitPackArgs {
  const at::Tensor& x;  // [.., K]
  std::string format;

  static constexpr const char *kName = "low_bit_pack", *kResults = "(Tensor values, Tensor scales)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("x", a.x, Dims{"...K"}), arg("format", a.format));
  }
};

struct LowBitUnpackArgs {
  LowBitWeight w;
  at::ScalarType dtype;

  static constexpr const char *kName = "low_bit_unpack", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) { return f(group(a.w), arg("dtype", a.dtype)); }
};

struct LowBitLinearArgs {
  const at::Tensor& x;  // [.., K]
  LowBitWeight w;       // [N, K]

  static constexpr const char *kName = "low_bit_linear", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) { return f(arg("x", a.x, Dims{"...K"}, kLead), group(a.w)); }
};

struct LowBitGroupedGemmArgs {
  const at::Tensor& x;              // [R, K]
  LowBitWeight w;                   // [E, N, K]
  const at::Tensor& expert_offset;  // [E + 1]

  static constexpr const char *kName = "low_bit_grouped_gemm", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("x", a.x, Dims{"RK"}, kLead), group(a.w),
             arg("expert_offset", a.expert_offset, Dims{"O"}, kIntType));
  }
};

bool is_stored_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

ValuesAndScales low_bit_pack_meta(const LowBitPackArgs& a) {
  const c10::SymInt K = check_args(a)['K'];
  const LowBitFormat format = low_bit_format(a.format, LowBitPackArgs::kName);
  const int64_t each = low_bit_group(format);
  TROUPE_CHECK(is_stored_type(a.x.scalar_type()), "low_bit_pack: x must be f32, bf16 or f16; it is",
               tensor_text(a.x));
  TROUPE_CHECK(K % each == 0, "low_bit_pack: rows of x must be whole groups of", each,
               "elements in", a.format, "; x is", tensor_text(a.x));
  std::vector<c10::SymInt> sizes = a.x.sym_sizes().vec();
  const auto bytes = a.x.options().dtype(at::kByte).requires_grad(false);
  sizes.back() = K / each * (each * low_bit_bits(format) / 8);
  const at::Tensor values = at::empty_symint(sizes, bytes);
  sizes.back() = K / each;
  return {values, at::empty_symint(sizes, has_exponents(format) ? bytes : bytes.dtype(at::kFloat))};
}

ValuesAndScales low_bit_pack_device(const LowBitPackArgs& a) {
  ValuesAndScales out = low_bit_pack_meta(a);
  const auto& [values, scales] = out;
  const LowBitFormat format = low_bit_format(a.format, LowBitPackArgs::kName);
  const at::Tensor x = a.x.contiguous(), bad = at::zeros({1}, values.options().dtype(at::kLong));
  const int64_t n = x.numel();
  const bool mx = has_exponents(format);
  const LowBitPack args{.x = {x.const_data_ptr(), dtype_of_tensor(x, "low_bit_pack: x"), 1, n, n},
                        .values = values.mutable_data_ptr<uint8_t>(),
                        .scales = mx ? nullptr : scales.mutable_data_ptr<float>(),
                        .exponents = mx ? scales.mutable_data_ptr<uint8_t>() : nullptr,
                        .non_finite = bad.mutable_data_ptr<int64_t>(),
                        .format = format};
  run(x.device(), args, low_bit_pack_cpu, &CudaKernels::low_bit_pack);
  const auto count = bad.item<int64_t>();
  TROUPE_CHECK(count == 0, "low_bit_pack: all elements of x must be finite;", count, "of", n,
               "are NaN or infinite");
  return out;
}

at::Tensor low_bit_unpack_meta(const LowBitUnpackArgs& a) {
  check_args(a);
  TROUPE_CHECK(is_stored_type(a.dtype) || a.dtype == at::kDouble,
               "low_bit_unpack: dtype must be f32, bf16, f16 or f64; it is", a.dtype);
  return at::empty_symint(check_low_bit(a.w, LowBitUnpackArgs::kName),
                          a.w.values.options().dtype(a.dtype));
}

at::Tensor low_bit_unpack_device(const LowBitUnpackArgs& a) {
  if (a.dtype == at::kDouble) {  // f32 holds what is read back.
    return low_bit_unpack_device({a.w, at::kFloat}).to(at::kDouble);
  }
  at::Tensor x = low_bit_unpack_meta(a);
  const LowBitFormat format = low_bit_format(a.w.format, LowBitUnpackArgs::kName);
  const at::Tensor values = a.w.values.contiguous(), scales = a.w.scales.contiguous();
  const int64_t n = x.numel();
  const bool mx = has_exponents(format);
  const LowBitUnpack args{
      .values = values.const_data_ptr<uint8_t>(),
      .scales = mx ? nullptr : scales.const_data_ptr<float>(),
      .exponents = mx ? scales.const_data_ptr<uint8_t>() : nullptr,
      .x = {x.mutable_data_ptr(), dtype_of_tensor(x, "low_bit_unpack: x"), 1, n, n},
      .format = format};
  run(x.device(), args, low_bit_unpack_cpu, &CudaKernels::low_bit_unpack);
  return x;
}

at::Tensor unpacked_weight(const LowBitWeight& w, at::ScalarType dtype) {
  static const auto op = raw_op<decltype(low_bit_unpack_device)>();
  return op({w, dtype});
}

// What both products ask of x and W; returns W's sizes.
std::vector<c10::SymInt> check_low_bit_product(const at::Tensor& x, const LowBitWeight& w,
                                               int64_t dimensions, const char* op) {
  const std::string name(op);
  TROUPE_CHECK(is_stored_type(x.scalar_type()) || x.scalar_type() == at::kDouble,
               name + ": x must be of a float type; it is", tensor_text(x));
  TROUPE_CHECK(w.values.dim() == dimensions, name + ": values must have", dimensions,
               "dimensions; they are", tensor_text(w.values));
  std::vector<c10::SymInt> sizes = check_low_bit(w, op);
  TROUPE_CHECK(sizes.back() == x.sym_size(-1), name + ": the weight must take", x.sym_size(-1),
               "inputs, x's columns; it takes", sizes.back());
  return sizes;
}

at::Tensor low_bit_linear_meta(const LowBitLinearArgs& a) {
  check_args(a);
  std::vector<c10::SymInt> sizes = a.x.sym_sizes().vec();
  sizes.back() = check_low_bit_product(a.x, a.w, 2, LowBitLinearArgs::kName)[0];
  return at::empty_symint(sizes, a.x.options());
}

// mm_out and not at::linear: the result has x's type under autocast too.
at::Tensor low_bit_linear_device(const LowBitLinearArgs& a) {
  at::Tensor y = low_bit_linear_meta(a);
  const at::Tensor w = unpacked_weight(a.w, a.x.scalar_type());
  const auto rows = [](const at::Tensor& t) {
    return t.dim() == 1 ? t.unsqueeze(0) : t.flatten(0, -2);
  };
  at::Tensor out = rows(y);
  at::mm_out(out, rows(a.x), w.t());
  return y;
}

at::Tensor low_bit_linear_op(const LowBitLinearArgs& a) {
  return low_bit_linear(a.x, {a.w.values, a.w.scales},
                        low_bit_format(a.w.format, LowBitLinearArgs::kName));
}

using GroupedGemmOp = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, bool);

at::Tensor multiply_rows_of_experts(const at::Tensor& rows, const at::Tensor& w,
                                    const at::Tensor& expert_offset, bool w_out_in) {
  static const auto op = raw_op<GroupedGemmOp>("troupe::grouped_gemm");
  return op(rows, w, expert_offset, w_out_in);
}

// The sizes of the result.
std::vector<c10::SymInt> check_low_bit_segments(const LowBitGroupedGemmArgs& a) {
  const DimSizes known = check_args(a);
  const std::vector<c10::SymInt> sizes =
      check_low_bit_product(a.x, a.w, 3, LowBitGroupedGemmArgs::kName);
  TROUPE_CHECK(known['O'] == sizes[0] + 1, "low_bit_grouped_gemm: expert_offset must have",
               sizes[0] + 1, "elements, one more than there are experts; it is",
               tensor_text(a.expert_offset));
  return {known['R'], sizes[1]};
}

at::Tensor low_bit_grouped_gemm_meta(const LowBitGroupedGemmArgs& a) {
  return at::empty_symint(check_low_bit_segments(a), a.x.options());
}

at::Tensor low_bit_grouped_gemm_device(const LowBitGroupedGemmArgs& a) {
  check_low_bit_segments(a);
  const at::Tensor w = unpacked_weight(a.w, a.x.scalar_type());
  return multiply_rows_of_experts(a.x, w, a.expert_offset, true);
}

at::Tensor low_bit_grouped_gemm_op(const LowBitGroupedGemmArgs& a) {
  return low_bit_grouped_gemm(a.x, {a.w.values, a.w.scales},
                              low_bit_format(a.w.format, LowBitGroupedGemmArgs::kName),
                              a.expert_offset);
}

}  // namespace

LowBit low_bit_pack(const at::Tensor& x, LowBitFormat format) {
  static const auto op = raw_op<decltype(low_bit_pack_device)>();
  auto [values, scales] = op({x, to_text(format)});
  return {values, scales};
}

at::Tensor low_bit_unpack(const LowBit& w, LowBitFormat format, at::ScalarType dtype) {
  return unpacked_weight({w.values, w.scales, to_text(format)}, dtype);
}

at::Tensor low_bit_grouped_gemm(const at::Tensor& x_RK, const LowBit& w, LowBitFormat format,
                                const at::Tensor& expert_offset) {
  static const auto op = raw_op<decltype(low_bit_grouped_gemm_device)>();
  const std::string name = to_text(format);
  at::Tensor y = op({x_RK, {w.values, w.scales, name}, expert_offset});
  record({.name = LowBitGroupedGemmArgs::kName,
          .inputs = {x_RK},
          .outputs = {y},
          .saved = {w.values, w.scales, expert_offset},
          .backward = [name](const Gradients& g) -> TensorList {
            const at::Tensor& grad = g.outputs[0];
            const at::Tensor wide =
                unpacked_weight({g.saved[0], g.saved[1], name}, grad.scalar_type());
            return {multiply_rows_of_experts(grad, wide, g.saved[2], false)};
          }});
  return y;
}

at::Tensor low_bit_linear(const at::Tensor& x, const LowBit& w, LowBitFormat format) {
  static const auto op = raw_op<decltype(low_bit_linear_device)>();
  const std::string name = to_text(format);
  at::Tensor y = op({x, {w.values, w.scales, name}});
  record({.name = LowBitLinearArgs::kName,
          .inputs = {x},
          .outputs = {y},
          .saved = {w.values, w.scales},
          .backward = [name](const Gradients& g) -> TensorList {
            const at::Tensor& grad = g.outputs[0];
            const at::Tensor wide =
                unpacked_weight({g.saved[0], g.saved[1], name}, grad.scalar_type());
            return {at::matmul(grad, wide)};
          }});
  return y;
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<low_bit_pack_device, low_bit_pack_meta>(m);
  define<low_bit_unpack_device, low_bit_unpack_meta>(m);
  define<low_bit_linear_device, low_bit_linear_meta, low_bit_linear_op>(m);
  define<low_bit_grouped_gemm_device, low_bit_grouped_gemm_meta, low_bit_grouped_gemm_op>(m);
}

}  // namespace troupe
