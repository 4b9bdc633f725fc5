// How a token file stores its ids. The first eight values are the codes of Megatron's `.idx`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace troupe {

enum class TokenType : uint8_t {
  kU8 = 1,
  kI8,
  kI16,
  kI32,
  kI64,
  kF64,
  kF32,
  kU16,        // of these, kF64 and kF32 hold no tokens
  kU32 = 100,  // not Megatron's: llm.c and OLMo
};

constexpr int64_t size_bytes(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8: return 1;
    case TokenType::kI16:
    case TokenType::kU16: return 2;
    case TokenType::kI32:
    case TokenType::kF32:
    case TokenType::kU32: return 4;
    case TokenType::kI64:
    case TokenType::kF64: return 8;
  }
  return 0;
}

std::string_view name(TokenType type);

// What Megatron's tools choose for a vocabulary: u16 below 65,500, else i32.
constexpr TokenType token_type_for(int64_t vocab) {
  return vocab < 65500 ? TokenType::kU16 : TokenType::kI32;
}

// out[i] = the i-th id of `bytes`, which holds out.size() of them. An id beyond 32 bits becomes the
// nearest int32_t, which no vocabulary holds.
void widen(TokenType type, std::span<const std::byte> bytes, std::span<int32_t> out);

// The opposite; throws (class bug) if an id does not fit.
void narrow(TokenType type, std::span<const int32_t> ids, std::span<std::byte> out);

}  // namespace troupe
