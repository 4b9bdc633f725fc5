// What an operator saves for its backward, by name: a struct whose visit() lists its tensors.
//   struct Saved {
//     at::Tensor x;
//     std::optional<at::Tensor> bias;
//     Plan plan;
//     static void visit(auto& s, auto&& f) { f(s.x); f(s.bias); f(s.plan); }
//   };
//   record({..., .saved = saved_list(s), .backward = [](const Gradients& g) {
//     const auto s = saved_from<Saved>(g.saved); ... }});
#pragma once

#include <optional>
#include <type_traits>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/plan.h"

namespace troupe {

// `f` of each tensor in `x`, undefined where an optional one is absent.
template <class Saved, class F>
void visit_saved(Saved& x, const F& f) {
  using Plain = std::remove_const_t<Saved>;
  if constexpr (std::is_same_v<Plain, at::Tensor>) {
    f(x);
  } else if constexpr (std::is_same_v<Plain, std::optional<at::Tensor>>) {
    at::Tensor tensor = x.value_or(at::Tensor());
    f(tensor);
    if constexpr (!std::is_const_v<Saved>) x = given(tensor);
  } else if constexpr (std::is_same_v<Plain, Plan>) {
    f(x.expert_offset), f(x.row_src), f(x.row_slot), f(x.slot_row), f(x.counts);
  } else {
    Plain::visit(x, [&f](auto& part) { visit_saved(part, f); });
  }
}

template <class Saved>
TensorList saved_list(const Saved& saved) {
  TensorList out;
  visit_saved(saved, [&out](const at::Tensor& tensor) { out.push_back(tensor); });
  return out;
}

template <class Saved>
Saved saved_from(const TensorList& tensors) {
  Saved out;
  size_t next = 0;
  visit_saved(out, [&](at::Tensor& tensor) { tensor = tensors.at(next++); });
  TROUPE_CHECK(next == tensors.size(), "an operator saved", tensors.size(), "tensors and reads",
               next);
  return out;
}

}  // namespace troupe
