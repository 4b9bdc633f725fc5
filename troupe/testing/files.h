// What tests of readers need: files with given bytes, the text of a refusal, the lines of a log.
#pragma once

#include <gtest/gtest.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/log.h"

namespace troupe::testing {

inline void put_file(const std::string& path, std::string_view bytes) {
  std::filesystem::remove(path);  // A new file, also where an open one has the name.
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::string from_hex_text(std::string_view digits) {
  std::string out;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    int value = 0;
    std::from_chars(&digits[i], &digits[i] + 2, value, 16);
    out += static_cast<char>(value);
  }
  return out;
}

// What f says when it throws an Error of this code; "" (and a failed test) if it does not.
template <class F>
std::string refusal_code(Code code, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(to_text(error.code()), to_text(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown; expected " << to_text(code);
  return "";
}

inline bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Keeps what is logged.
class Lines : public LogSink {
 public:
  void write(Level, std::string_view line) override { (text += line) += '\n'; }
  std::string text;
};

}  // namespace troupe::testing
