// Sizes, types and devices of an operator's tensors, checked by the facts in its visit()
// (op_args.h): Dims, OfType and LeadArg.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <initializer_list>
#include <tuple>
#include <type_traits>
#include <utility>

#include "troupe/ops/support/op_args.h"

namespace troupe {

// The sizes of a call by their letters.
class DimSizes {
 public:
  DimSizes() = default;
  // Those that are numbers among the arguments.
  DimSizes(std::initializer_list<std::pair<char, c10::SymInt>> known);

  const c10::SymInt& operator[](char letter) const;
  const c10::SymInt* find(char letter) const;
  void set(char letter, const c10::SymInt& size);

 private:
  static constexpr size_t kMost = 8;
  std::array<char, kMost> letters_{};
  std::array<c10::SymInt, kMost> sizes_;
  size_t used_ = 0;
};

namespace detail {

struct CheckedArg {
  const char *op, *name;
  const at::Tensor& x;
  const char* letters;
  OfType type;
};
void check_arg(const CheckedArg& one, const at::Tensor& lead, DimSizes& sizes);

template <class A>
void check_with(const char* op, const A& one, const at::Tensor*& lead, DimSizes& sizes) {
  if constexpr (A::template kHas<Dims>) {
    const at::Tensor* x = nullptr;
    if constexpr (std::is_same_v<typename A::Plain, at::Tensor>) {
      x = &one.value;
    } else if (one.value.has_value()) {
      x = &*one.value;
    }
    if (x == nullptr) return;
    OfType type;
    if constexpr (A::template kHas<OfType>) type = std::get<OfType>(one.facts);
    if (lead == nullptr) lead = x;
    check_arg({op, one.name, *x, std::get<Dims>(one.facts).letters, type}, *lead, sizes);
  }
}

}  // namespace detail

// What messages call an operator: kTitle where another one's user sees them, else kName.
template <class Args>
constexpr const char* op_title() {
  if constexpr (requires { Args::kTitle; }) {
    return Args::kTitle;
  } else {
    return Args::kName;
  }
}

// Refuses tensors that are not as their facts say; the message begins "scale: factor".
template <class Args>
DimSizes check_args(const Args& args, DimSizes sizes = {}) {
  const at::Tensor* lead = nullptr;
  const auto of = [&]<bool kFirst>(const auto& one) {
    if constexpr (kFirst == std::remove_cvref_t<decltype(one)>::template kHas<LeadArg>) {
      detail::check_with(op_title<Args>(), one, lead, sizes);
    }
  };
  std::apply(
      [&](const auto&... each) {
        (of.template operator()<true>(each), ...);
        (of.template operator()<false>(each), ...);
      },
      args_tuple(args));
  return sizes;
}

}  // namespace troupe
