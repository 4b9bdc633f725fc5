// The file format of llama.cpp, GGUF version 3, little-endian:
//
//   "GGUF" u32 3  u64 tensors  u64 fields
//   of each field    text key, u32 type, value     text: u64 bytes, then they; a list: u32 type of
//                                                  an element, u64 count, the elements
//   of each tensor   text name, u32 dimensions, u64 each (the fastest one first), u32 type,
//                    u64 offset of its data
//   the data, tensor by tensor
//
// Data begins at a multiple of kGgufAlignment, and so does each tensor of it; zeros are between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace troupe {

inline constexpr int64_t kGgufAlignment = 32;

// By ggml's numbers.
enum class GgufType : uint32_t { kF32 = 0, kQ8_0 = 8, kBF16 = 30 };

using GgufValue = std::variant<uint32_t, float, bool, std::string, std::vector<int32_t>,
                               std::vector<float>, std::vector<std::string>>;
struct GgufField {
  std::string key;
  GgufValue value;
};

struct GgufEntry {
  std::string name;
  std::vector<int64_t> shape;  // the fastest dimension last
  GgufType type = GgufType::kF32;
};

int64_t gguf_bytes(const GgufEntry& tensor);  // of its data, without the zeros behind it

// All that stands before the data, its zeros included.
std::string gguf_header(const std::vector<GgufField>& fields,
                        const std::vector<GgufEntry>& tensors);

// q8_0 cuts a row into blocks of 32 numbers: an f16 scale d, then 32 int8.
//   d = max |x| / 127,  q = x / d, rounded to the nearest, halves away from 0
inline constexpr int64_t kQ8Block = 32, kQ8Bytes = 34;

// Appends the blocks of whole rows: a multiple of 32 numbers. False, with nothing appended, where a
// number is not finite or a scale is beyond what an f16 holds.
bool append_q8_0(std::span<const float> numbers, std::vector<std::byte>& out);

}  // namespace troupe
