#include "troupe/train/params/buckets.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/where.h>

#include <algorithm>

#include "troupe/core/number/moment8.h"

namespace troupe {

at::Tensor joined(const at::Tensor& value, const at::Tensor& low) {
  const at::Tensor upper = value.view(at::kShort).to(at::kInt), rest = low.to(at::kInt);
  upper.add_(rest.bitwise_right_shift(31)).bitwise_left_shift_(16);  // less 1 where low >= 2^15
  return upper.bitwise_or_(rest.bitwise_and_(0xffff)).view(at::kFloat);
}

void split(const at::Tensor& master, const at::Tensor& value, const at::Tensor& low) {
  const at::Tensor bits = master.view(at::kInt), is_nan = at::isnan(master);
  low.copy_(bits.bitwise_and(0xffff).masked_fill_(is_nan, 0));
  const at::Tensor rounded = (bits + 0x8000).bitwise_right_shift_(16);
  const at::Tensor of_nan = bits.bitwise_right_shift(16).bitwise_or_(0x40);
  value.view(at::kShort).copy_(at::where(is_nan, of_nan, rounded));
}

OwnedRange owned_range(const ParamSlot& slot, const Bucket& bucket) {
  const int64_t from = std::max(slot.offset, bucket.own_from);
  const int64_t to =
      std::min(slot.offset + slot.named.param->numel(), bucket.own_from + bucket.own_size);
  return to <= from ? OwnedRange{} : OwnedRange{from - slot.offset, to - from};
}

at::Tensor owned_part(const ParamSlot& slot, const Bucket& bucket, const at::Tensor& buffer) {
  const OwnedRange range = owned_range(slot, bucket);
  const int64_t from = range.size == 0 ? 0 : slot.offset + range.from - bucket.own_from;
  // Past the dispatcher: an update asks for hundreds.
  return at::native::as_strided_tensorimpl(buffer, {range.size}, {1},
                                           buffer.storage_offset() + from);
}

at::Tensor owned_blocks_of(const ParamSlot& slot, const Bucket& bucket, const at::Tensor& scales) {
  const OwnedRange range = owned_range(slot, bucket);
  if (range.size == 0) return scales.narrow(0, 0, 0);
  const int64_t from = slot.offset + range.from - bucket.own_from;
  return scales.narrow(0, from / kMomentBlock, moment_blocks(range.size));
}

}  // namespace troupe
