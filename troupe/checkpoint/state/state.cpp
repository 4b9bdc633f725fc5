#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/checkpoint/state/tensor_element.h"
#include "troupe/core/check.h"
#include "troupe/core/number/moment8.h"
#include "troupe/core/number/rng.h"
#include "troupe/core/number/split_f32.h"

namespace troupe {

StateTensor StateTensor::coded(const at::Tensor& codes, const at::Tensor& scales, bool second,
                               Take take) {
  TROUPE_CHECK(codes.scalar_type() == at::kByte && scales.scalar_type() == at::kFloat &&
                   scales.numel() == moment_blocks(codes.numel()),
               "codes of", codes.numel(), "moments have", scales.numel(), "scales");
  StateTensor out(codes);
  out.scales = scales;
  out.second = second;
  out.take = std::move(take);
  return out;
}

StateTensor StateTensor::taken(int64_t count, at::ScalarType type, Take take) {
  StateTensor out(at::empty({count}, at::TensorOptions(type).device(at::kMeta)));
  out.take = std::move(take);
  return out;
}

StateTensor StateTensor::part(int64_t at, int64_t count) const {
  StateTensor out = *this;
  const auto cut = [](at::Tensor& x, int64_t from, int64_t size) {
    if (x.defined()) x = x.detach().view(-1).narrow(0, from, size);
  };
  cut(out.value, at, count);
  cut(out.low, at, count);
  const int64_t from = (first + at) / kMomentBlock;
  cut(out.scales, from, moment_blocks(first + at + count) - from);
  out.first = (first + at) % kMomentBlock;
  if (take && at > 0) {
    out.take = [inner = take, at](int64_t i, const at::Tensor& x) { inner(at + i, x); };
  }
  return out;
}

void StateTensor::fill(const at::Tensor& numbers) const {
  if (take) return take(0, numbers);
  if (!low.defined()) {
    at::Tensor(value).copy_(numbers);
    return;
  }
  // In pieces: on a GPU the halves of all would need the host's memory once more.
  constexpr int64_t kPiece = int64_t{1} << 20;
  const int64_t n = numbers.numel();
  for (int64_t at = 0; at < n; at += kPiece) {
    const int64_t count = std::min(kPiece, n - at);
    const at::Tensor f32 = numbers.narrow(0, at, count).to(at::kFloat).contiguous();
    const at::Tensor high = at::empty({count}, at::kBFloat16),
                     rest = at::empty({count}, at::kShort);
    split_f32({f32.const_data_ptr<float>(), static_cast<size_t>(count)},
              static_cast<BF16*>(high.mutable_data_ptr()),
              static_cast<uint16_t*>(rest.mutable_data_ptr()));
    value.narrow(0, at, count).copy_(high);
    low.narrow(0, at, count).copy_(rest);
  }
}

void StateTensor::numbers(int64_t at, std::span<float> out) const {
  if (low.defined()) {
    return join_f32(static_cast<const BF16*>(value.const_data_ptr()) + at,
                    static_cast<const uint16_t*>(low.const_data_ptr()) + at, out);
  }
  const auto* const codes = static_cast<const uint8_t*>(value.const_data_ptr()) + at;
  const auto* const scale = scales.const_data_ptr<float>();
  for (size_t i = 0; i < out.size(); ++i) {
    const float s = scale[(first + at + static_cast<int64_t>(i)) / kMomentBlock];
    out[i] = second ? second_moment(codes[i], s) : first_moment(codes[i], s);
  }
}

void CheckpointState::add(const std::string& name, const Param& p, Replica replica) {
  add_like(name, p, p.value, replica);
}

void CheckpointState::add_like(const std::string& name, const Param& p, const at::Tensor& value,
                               Replica replica) {
  TROUPE_CHECK(value.defined() && value.numel() == p.numel(), name, "has",
               value.defined() ? value.numel() : -1, "elements, its parameter", p.numel());
  add_range(name, p, 0, value, replica);
}

void CheckpointState::add_range(const std::string& name, const Param& p, int64_t from,
                                const StateTensor& live, Replica replica) {
  TROUPE_CHECK(live.value.is_contiguous(), name, "must be contiguous");
  const int64_t count = live.value.numel();
  const int64_t to = from + count;
  // Elements a .. b - 1 of `box`, which begins at element `start` of the parameter.
  const auto add_part = [&](const std::string& part, const Box& box, int64_t start) {
    int64_t at = std::max(from, start);
    const int64_t end = std::min(to, start + box.numel());
    if (at >= end && count + box.numel() > 0) return;
    for (const Box& piece : boxes_of_range(box, at - start, end - start)) {
      add_box(part, piece, live.part(at - from, piece.numel()), replica);
      at += piece.numel();
    }
  };
  if (!p.per_expert) return add_part(name, {p.global, p.offset, p.size}, 0);
  const auto inner = [](const Sizes& sizes) { return Sizes(sizes.begin() + 1, sizes.end()); };
  const Box box = {inner(p.global), inner(p.offset), inner(p.size)};
  for (size_t i = 0; i < p.experts.size(); ++i) {
    add_part(expert_name(name, p.experts[i]), box, static_cast<int64_t>(i) * box.numel());
  }
}

void CheckpointState::add_box(const std::string& name, const Box& box, const StateTensor& live,
                              Replica replica) {
  validate(box);
  const at::Tensor& value = live.value;
  TROUPE_CHECK(value.is_contiguous(), name, "must be contiguous");
  TROUPE_CHECK(value.numel() == box.numel(), name, "has", value.numel(), "elements, its box",
               box.numel());
  TROUPE_CHECK(0 <= replica.index && replica.index < replica.count, name, "replica", replica.index,
               "of", replica.count);
  if (live.low.defined()) {
    TROUPE_CHECK(value.scalar_type() == at::kBFloat16 && live.low.scalar_type() == at::kShort &&
                     live.low.numel() == value.numel() && live.low.is_contiguous(),
                 name, "in halves must be bf16 and int16 of one size; it is", value.scalar_type(),
                 "and", live.low.scalar_type());
  }
  const Element element = live.in_place() ? element_of(value.scalar_type()) : Element::kF32;
  TensorBox tensor = {name, element, box};
  // Spread by name, so that no replica writes all.
  const auto owner =
      static_cast<int64_t>(stream_of(stored_name(tensor)) % static_cast<uint64_t>(replica.count));
  parts_.push_back({live.part(0, box.numel()), std::move(tensor), owner == replica.index});
}

void CheckpointState::take(const CheckpointState& other,
                           const std::function<bool(const std::string&)>& keeps) {
  for (const Part& part : other.parts_) {
    if (keeps(part.tensor.name)) parts_.push_back(part);
  }
}

int64_t CheckpointState::owned_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.owned ? part.tensor.bytes() : 0;
  return bytes;
}

}  // namespace troupe
