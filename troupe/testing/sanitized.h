// How much of a large test runs under the sanitizers, which make it ten times as slow: a wrong access shows in some of its cases.
#pragma once

namespace troupe {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

template <typename T>
constexpr T unless_sanitized(T all, T sanitized) {
  return kSanitized ? sanitized : all;
}

}  // namespace troupe
