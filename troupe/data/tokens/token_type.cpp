#include "troupe/data/tokens/token_type.h"

#include <cstring>
#include <limits>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// f.operator()<T>() with the C++ type of `type`.
template <class F>
void dispatch(TokenType type, F&& f) {
  switch (type) {
    case TokenType::kU8: return f.template operator()<uint8_t>();
    case TokenType::kI8: return f.template operator()<int8_t>();
    case TokenType::kI16: return f.template operator()<int16_t>();
    case TokenType::kU16: return f.template operator()<uint16_t>();
    case TokenType::kI32: return f.template operator()<int32_t>();
    case TokenType::kU32: return f.template operator()<uint32_t>();
    case TokenType::kI64: return f.template operator()<int64_t>();
    case TokenType::kF32:
    case TokenType::kF64: break;
  }
  TROUPE_CHECK(false, "no tokens of type", name(type));
}

template <class T>
int32_t saturated(T value) {
  using Limits = std::numeric_limits<int32_t>;
  if (std::in_range<int32_t>(value)) return static_cast<int32_t>(value);
  return std::cmp_less(value, 0) ? Limits::min() : Limits::max();
}

}  // namespace

std::string_view name(TokenType type) {
  switch (type) {
    case TokenType::kU8: return "u8";
    case TokenType::kI8: return "i8";
    case TokenType::kI16: return "i16";
    case TokenType::kI32: return "i32";
    case TokenType::kI64: return "i64";
    case TokenType::kF64: return "f64";
    case TokenType::kF32: return "f32";
    case TokenType::kU16: return "u16";
    case TokenType::kU32: return "u32";
  }
  return "?";
}

void widen(TokenType type, std::span<const std::byte> bytes, std::span<int32_t> out) {
  TROUPE_CHECK(std::ssize(bytes) == std::ssize(out) * size_bytes(type), bytes.size(), out.size());
  dispatch(type, [&]<class T>() {
    const std::byte* from = bytes.data();
    for (int32_t& id : out) {
      T value;
      std::memcpy(&value, from, sizeof(T));  // Files do not align their arrays.
      id = saturated(value);
      from += sizeof(T);
    }
  });
}

void narrow(TokenType type, std::span<const int32_t> ids, std::span<std::byte> out) {
  TROUPE_CHECK(std::ssize(out) == std::ssize(ids) * size_bytes(type), out.size(), ids.size());
  dispatch(type, [&]<class T>() {
    std::byte* to = out.data();
    for (const int32_t id : ids) {
      TROUPE_CHECK(std::in_range<T>(id), "id", id, "as", name(type));
      const T value = static_cast<T>(id);
      std::memcpy(to, &value, sizeof(T));
      to += sizeof(T);
    }
  });
}

}  // namespace troupe
