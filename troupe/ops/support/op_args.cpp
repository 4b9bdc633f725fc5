#include "troupe/ops/support/op_args.h"

#include <charconv>

namespace troupe {
namespace detail {

TypeWords type_words(std::type_identity<at::Tensor>) {
  return {"Tensor"};
}
TypeWords type_words(std::type_identity<std::optional<at::Tensor>>) {
  return {"Tensor", "?"};
}
TypeWords type_words(std::type_identity<at::TensorList>) {
  return {"Tensor", "[]"};
}
TypeWords type_words(std::type_identity<int64_t>) {
  return {"int"};
}
TypeWords type_words(std::type_identity<c10::SymInt>) {
  return {"SymInt"};
}
TypeWords type_words(std::type_identity<double>) {
  return {"float"};
}
TypeWords type_words(std::type_identity<std::optional<double>>) {
  return {"float", "?"};
}
TypeWords type_words(std::type_identity<bool>) {
  return {"bool"};
}
TypeWords type_words(std::type_identity<std::string>) {
  return {"str"};
}
TypeWords type_words(std::type_identity<at::ScalarType>) {
  return {"ScalarType"};
}

std::string float_text(double x) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.begin(), digits.end(), x).ptr;
  std::string text(digits.begin(), end);
  const size_t e = text.find('e');
  if (e == std::string::npos) return text.find('.') == std::string::npos ? text + '.' : text;
  if (text[e + 2] == '0') text.erase(e + 2, 1);  // 1e-08
  return text;
}

}  // namespace detail
}  // namespace troupe
