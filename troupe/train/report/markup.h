// Text of HTML and SVG in which no value can become markup: a string literal is written as it
// stands, everything else is escaped.
//   Markup m;
//   m << "<td>" << set_name << "</td>";
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>

namespace troupe {

// & < > " ' as entities; control characters besides tab and newline become U+FFFD. Fit for an
// element's text and for an attribute in quotes.
std::string escaped(std::string_view text);

class Markup {
 public:
  template <size_t N>
  Markup& operator<<(const char (&literal)[N]) {
    text_.append(literal, N - 1);
    return *this;
  }
  Markup& operator<<(const Markup& finished) {
    text_ += finished.text_;
    return *this;
  }
  Markup& operator<<(const std::string& value) {
    text_ += escaped(value);
    return *this;
  }
  Markup& operator<<(std::string_view value) {
    text_ += escaped(value);
    return *this;
  }
  // Six digits at most, as a coordinate needs.
  Markup& operator<<(double value);
  template <class T>
  requires std::is_integral_v<T> Markup& operator<<(T value) {
    text_ += std::to_string(value);
    return *this;
  }

  bool empty() const { return text_.empty(); }
  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

}  // namespace troupe
