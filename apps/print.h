// What verbs print: numbers as people read them, and JSON.
#pragma once

#include <cstdint>
#include <iostream>
#include <string>

#include "apps/models/check_logits.h"
#include "troupe/core/config/config_traits.h"
#include "troupe/core/config/json.h"
#include "troupe/core/text/readable.h"
#include "troupe/data/build/describe_tokens.h"
#include "troupe/train/observe/step_line.h"

namespace troupe {

// "1,234,567"
inline std::string with_commas(int64_t value) {
  std::string out = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = out.size(); at > first + 3;) out.insert(at -= 3, 1, ',');
  return out;
}

// "12.3 MB/s": millions of bytes, as data build counts.
inline std::string rate(int64_t bytes, double seconds) {
  return fixed(static_cast<double>(bytes) * 1e-6 / (seconds > 1e-9 ? seconds : 1e-9), 1) + " MB/s";
}

// As std::printf, to std::cout: of a name with control characters a terminal shows none
// (terminal_text.h).
[[gnu::format(printf, 1, 2)]] void print_text(const char* format, ...);

template <Config C>
void print_json(const C& config) {
  write_json(std::cout, config);
  std::cout << '\n';
}

void print_tokens(const TokenSummary& summary);
void print_logits(const LogitsCheck& check);
// E4005 where they differ by more than rounding explains.
void require_logits(const LogitsCheck& check, FolderWeights weights, const std::string& place);

}  // namespace troupe
