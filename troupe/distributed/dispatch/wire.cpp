#include "troupe/distributed/dispatch/wire.h"

#include "troupe/kernels/wire_rows/wire_rows.h"
#include "troupe/ops/wire_rows.h"

namespace troupe {

int64_t wire_row_bytes(WireType wire, int64_t D, int64_t element_bytes) {
  return wire == WireType::kNative ? D * element_bytes : wire_row(D).bytes;
}

at::Tensor packed_rows(const at::Tensor& x_TD, const std::optional<at::Tensor>& index_N) {
  return pack_rows(x_TD, index_N);
}

at::Tensor unpacked_rows(const at::Tensor& packed_NB, int64_t D, at::ScalarType type) {
  return unpack_rows(packed_NB, D, type);
}

}  // namespace troupe
