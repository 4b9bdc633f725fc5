// Element types of safetensors files: all that the format knows, also those that no kernel takes.
#pragma once

#include <cstdint>
#include <string_view>

namespace troupe {

// In the order in which the reference library ranks them: it writes the last ones first.
enum class Element {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64
};

struct ElementInfo {
  std::string_view name;  // as files write it: "BF16"
  int bits;
};

// By the number of the enum.
inline constexpr ElementInfo kElements[] = {
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64}};

constexpr std::string_view name_of(Element e) {
  return kElements[static_cast<int>(e)].name;
}
constexpr int bits_of(Element e) {
  return kElements[static_cast<int>(e)].bits;
}

// False: no such type; lower case is not one.
constexpr bool element_of(std::string_view name, Element& out) {
  int i = 0;
  for (const ElementInfo& info : kElements) {
    if (info.name == name) return out = static_cast<Element>(i), true;
    ++i;
  }
  return false;
}

}  // namespace troupe
