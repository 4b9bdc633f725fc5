#include <ATen/core/Tensor.h>

#include <algorithm>

#include "troupe/checkpoint/checkpoint.h"
#include "troupe/checkpoint/tensor_element.h"
#include "troupe/core/check.h"
#include "troupe/core/rng.h"

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
                                const at::Tensor& value, Replica replica) {
  TROUPE_CHECK(value.is_contiguous(), name, "must be contiguous");
  const at::Tensor flat = value.detach().view(-1);
  const int64_t to = from + flat.numel();
  // Elements a .. b - 1 of `box`, which begins at element `start` of the parameter.
  const auto add_part = [&](const std::string& part, const Box& box, int64_t start) {
    int64_t at = std::max(from, start);
    const int64_t end = std::min(to, start + box.numel());
    if (at >= end && flat.numel() + box.numel() > 0) return;
    for (const Box& piece : boxes_of_range(box, at - start, end - start)) {
      add_box(part, piece, flat.narrow(0, at - from, piece.numel()), replica);
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

void CheckpointState::add_box(const std::string& name, const Box& box, const at::Tensor& value,
                              Replica replica) {
  validate(box);
  TROUPE_CHECK(value.is_contiguous(), name, "must be contiguous");
  TROUPE_CHECK(value.numel() == box.numel(), name, "has", value.numel(), "elements, its box",
               box.numel());
  TROUPE_CHECK(0 <= replica.index && replica.index < replica.count, name, "replica", replica.index,
               "of", replica.count);
  TensorBox tensor = {name, element_of(value.scalar_type()), box};
  // Spread by name, so that no replica writes all.
  const auto owner =
      static_cast<int64_t>(stream_of(stored_name(tensor)) % static_cast<uint64_t>(replica.count));
  parts_.push_back({std::move(tensor), value.detach().view(-1), owner == replica.index});
}

int64_t CheckpointState::owned_bytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.owned ? part.tensor.bytes() : 0;
  return bytes;
}

}  // namespace troupe
