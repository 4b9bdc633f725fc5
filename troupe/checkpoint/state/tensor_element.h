// torch's element types and the files'.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "troupe/checkpoint/files/element.h"
#include "troupe/core/check.h"

namespace troupe {

inline constexpr std::array<std::pair<at::ScalarType, Element>, 17> kScalarElements = {{
    {at::kFloat, Element::kF32},
    {at::kBFloat16, Element::kBF16},
    {at::kHalf, Element::kF16},
    {at::kDouble, Element::kF64},
    {at::kLong, Element::kI64},
    {at::kInt, Element::kI32},
    {at::kShort, Element::kI16},
    {at::kChar, Element::kI8},
    {at::kByte, Element::kU8},
    {at::kBool, Element::kBool},
    {at::kFloat8_e4m3fn, Element::kF8E4M3},
    {at::kFloat8_e5m2, Element::kF8E5M2},
    {at::kFloat8_e8m0fnu, Element::kF8E8M0},
    {at::kUInt16, Element::kU16},
    {at::kUInt32, Element::kU32},
    {at::kUInt64, Element::kU64},
    {at::kComplexFloat, Element::kC64},
}};

inline Element element_of(at::ScalarType type) {
  for (const auto& [scalar, element] : kScalarElements) {
    if (scalar == type) return element;
  }
  fail(Code::kBrokenContract, "checkpoint", "no file type for tensors of type",
       c10::toString(type));
}

// Throws E4003 for a type that torch does not have.
inline at::ScalarType scalar_of(Element element) {
  for (const auto& [scalar, other] : kScalarElements) {
    if (element == other) return scalar;
  }
  fail(Code::kBadModelFile, "element type", name_of(element), "is not one that tensors have here");
}

// The bytes of a contiguous tensor on the CPU.
inline std::span<std::byte> bytes_of(const at::Tensor& t) {
  TROUPE_CHECK(t.is_contiguous() && t.is_cpu(), "a contiguous tensor on the CPU is needed");
  return {static_cast<std::byte*>(t.mutable_data_ptr()), t.nbytes()};
}

}  // namespace troupe
