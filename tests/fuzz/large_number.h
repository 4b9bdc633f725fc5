// A text with one of its whole numbers made one that a reader must look at before it computes with
// it: which and by which follows from the text.
#pragma once

#include <cctype>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/file/hash.h"

inline std::string with_large_number(const std::string& text) {
  constexpr const char* kNumbers[] = {"9223372036854775807",
                                      "-9223372036854775807",
                                      "4611686018427387904",
                                      "9007199254740993",
                                      "1099511627777",
                                      "2147483648",
                                      "16777217",
                                      "65537",
                                      "10000",
                                      "-1"};
  std::vector<std::pair<size_t, size_t>> runs;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    if (end > i) runs.emplace_back(i, end - i);
    i = end + 1;
  }
  if (runs.empty()) return text;
  const uint64_t pick = troupe::hash64(text);
  const auto [at, length] = runs[pick % runs.size()];
  std::string out = text;
  return out.replace(at, length, kNumbers[(pick >> 32) % std::size(kNumbers)]);
}
