#include "troupe/distributed/dispatch/wire.h"

#include "troupe/core/check.h"
#include "troupe/kernels/wire_rows/wire_rows.h"
#include "troupe/ops/wire_rows.h"

namespace troupe {
namespace {

WireCode wire_code_of(WireType wire) {
  TROUPE_CHECK(wire != WireType::kNative, "rows of wire native are not packed");
  return wire == WireType::kFp8 ? WireCode::kE4m3 : WireCode::kInt8;
}

}  // namespace

int64_t wire_row_bytes(WireType wire, int64_t D, int64_t element_bytes) {
  return wire == WireType::kNative ? D * element_bytes : wire_row(D, wire_code_of(wire)).bytes;
}

at::Tensor packed_rows(WireType wire, const at::Tensor& x_TD,
                       const std::optional<at::Tensor>& index_N) {
  return pack_rows(x_TD, index_N, wire_code_of(wire));
}

at::Tensor unpacked_rows(WireType wire, const at::Tensor& packed_NB, int64_t D,
                         at::ScalarType type) {
  return unpack_rows(packed_NB, D, type, wire_code_of(wire));
}

}  // namespace troupe
