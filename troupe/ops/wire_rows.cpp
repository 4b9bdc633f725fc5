#include "troupe/ops/wire_rows.h"

#include <ATen/ops/empty.h>

#include <string>

#include "troupe/core/check.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Index = std::optional<at::Tensor>;

WireCode wire_code(const std::string& name, const char* op) {
  WireCode code{};
  TROUPE_CHECK(from_text(name, code), op, "code must be int8 or e4m3; it is", name);
  return code;
}

at::Tensor pack_rows_meta(const at::Tensor& x_TD, const Index& index_R, std::string code) {
  const WireCode wire = wire_code(code, "pack_rows:");
  check_sizes(x_TD, {-1, -1}, "pack_rows: x");
  dtype_of_tensor(x_TD, "pack_rows: x");
  if (index_R.has_value()) {
    check_sizes(*index_R, {-1}, "pack_rows: index");
    check_dtype(*index_R, at::kLong, "pack_rows: index");
    check_same_device(*index_R, x_TD, "pack_rows: index");
  }
  const c10::SymInt rows = index_R.has_value() ? index_R->sym_size(0) : x_TD.sym_size(0);
  const int64_t width = x_TD.sym_size(1).guard_int(__FILE__, __LINE__);
  return at::empty_symint({rows, wire_row(width, wire).bytes}, x_TD.options().dtype(at::kByte));
}

at::Tensor pack_rows_device(const at::Tensor& x_TD, const Index& index_R, std::string code) {
  at::Tensor packed = pack_rows_meta(x_TD, index_R, code);
  const at::Tensor x = rowwise(x_TD);
  const Index index = index_R.has_value() ? Index(index_R->contiguous()) : std::nullopt;
  if (index.has_value()) check_indices({{"pack_rows: index", *index, 0, x.size(0) - 1}});
  const PackRows args{.x = view(x, "pack_rows: x"),
                      .index = ptr_or_null<const int64_t>(index, "pack_rows: index"),
                      .packed = mat<uint8_t>(packed, "pack_rows: packed"),
                      .code = wire_code(code, "pack_rows:")};
  run(x.device(), args, pack_rows_cpu, &CudaKernels::pack_rows);
  return packed;
}

at::Tensor unpack_rows_meta(const at::Tensor& packed_RB, int64_t width, at::ScalarType type,
                            std::string code) {
  const WireCode wire = wire_code(code, "unpack_rows:");
  TROUPE_CHECK(width >= 0, "unpack_rows: width must be at least 0; it is", width);
  check_sizes(packed_RB, {-1, wire_row(width, wire).bytes}, "unpack_rows: packed");
  check_dtype(packed_RB, at::kByte, "unpack_rows: packed");
  at::Tensor out =
      at::empty_symint({packed_RB.sym_size(0), width}, packed_RB.options().dtype(type));
  dtype_of_tensor(out, "unpack_rows: out");
  return out;
}

at::Tensor unpack_rows_device(const at::Tensor& packed_RB, int64_t width, at::ScalarType type,
                              std::string code) {
  at::Tensor out = unpack_rows_meta(packed_RB, width, type, code);
  const at::Tensor packed = packed_RB.contiguous();
  const UnpackRows args{.packed = mat<const uint8_t>(packed, "unpack_rows: packed"),
                        .out = mut_view(out, "unpack_rows: out"),
                        .code = wire_code(code, "unpack_rows:")};
  run(packed.device(), args, unpack_rows_cpu, &CudaKernels::unpack_rows);
  return out;
}

}  // namespace

at::Tensor pack_rows(const at::Tensor& x_TD, const Index& index_R, WireCode code) {
  static const auto op = raw_op<decltype(pack_rows_device)>("troupe::pack_rows");
  return op(x_TD, index_R, to_text(code));
}

at::Tensor unpack_rows(const at::Tensor& packed_RB, int64_t width, at::ScalarType type,
                       WireCode code) {
  static const auto op = raw_op<decltype(unpack_rows_device)>("troupe::unpack_rows");
  return op(packed_RB, width, type, to_text(code));
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "pack_rows(Tensor x, Tensor? index, str code=\"int8\") -> Tensor", pack_rows_device,
         pack_rows_meta);
  define(m, "unpack_rows(Tensor packed, int width, ScalarType dtype, str code=\"int8\") -> Tensor",
         unpack_rows_device, unpack_rows_meta);
}

}  // namespace troupe
