#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "troupe/checkpoint/checkpoint.h"
#include "troupe/checkpoint/tensor_element.h"
#include "troupe/core/check.h"
#include "troupe/core/rng.h"
#include "troupe/core/split_f32.h"

namespace troupe {

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
                                const Live& live, Replica replica) {
  TROUPE_CHECK(live.value.is_contiguous(), name, "must be contiguous");
  const at::Tensor flat = live.value.detach().view(-1);
  const auto piece_of = [&](int64_t at, int64_t count) -> Live {
    const at::Tensor value = flat.narrow(0, at, count);
    if (!live.low.defined()) return value;
    return {value, live.low.view(-1).narrow(0, at, count)};
  };
  const int64_t to = from + flat.numel();
  // Elements a .. b - 1 of `box`, which begins at element `start` of the parameter.
  const auto add_part = [&](const std::string& part, const Box& box, int64_t start) {
    int64_t at = std::max(from, start);
    const int64_t end = std::min(to, start + box.numel());
    if (at >= end && flat.numel() + box.numel() > 0) return;
    for (const Box& piece : boxes_of_range(box, at - start, end - start)) {
      add_box(part, piece, piece_of(at - from, piece.numel()), replica);
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

void CheckpointState::add_whole(const std::string& name, const at::Tensor& value, Replica replica) {
  add_box(name, Box::whole(value.sizes().vec()), value, replica);
}

void CheckpointState::add_box(const std::string& name, const Box& box, const Live& live,
                              Replica replica) {
  validate(box);
  const auto& [value, low] = live;
  TROUPE_CHECK(value.is_contiguous(), name, "must be contiguous");
  TROUPE_CHECK(value.numel() == box.numel(), name, "has", value.numel(), "elements, its box",
               box.numel());
  TROUPE_CHECK(0 <= replica.index && replica.index < replica.count, name, "replica", replica.index,
               "of", replica.count);
  if (low.defined()) {
    TROUPE_CHECK(value.scalar_type() == at::kBFloat16 && low.scalar_type() == at::kShort &&
                     low.numel() == value.numel() && low.is_contiguous(),
                 name, "in halves must be bf16 and int16 of one size; it is", value.scalar_type(),
                 "and", low.scalar_type());
  }
  TensorBox tensor = {name, low.defined() ? Element::kF32 : element_of(value.scalar_type()), box};
  // Spread by name, so that no replica writes all.
  const auto owner =
      static_cast<int64_t>(stream_of(stored_name(tensor)) % static_cast<uint64_t>(replica.count));
  parts_.push_back({std::move(tensor), value.detach().view(-1), owner == replica.index,
                    low.defined() ? low.view(-1) : low});
}

void CheckpointState::Part::fill(const at::Tensor& numbers) const {
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

int64_t CheckpointState::owned_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.owned ? part.tensor.bytes() : 0;
  return bytes;
}

}  // namespace troupe
