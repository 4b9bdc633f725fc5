// What print_config and flatten are written with.
#pragma once

#include <ostream>
#include <utility>

#include "troupe/core/config/config_traits.h"
#include "troupe/core/text/text.h"

namespace troupe::detail {

class Printer {
 public:
  Printer(std::ostream& os, const Sources& sources) : os_(os), sources_(sources) {}

  template <Config C>
  void print_section(const C& config, const std::string& indent, const std::string& path) {
    if constexpr (Choice<C>) {
      os_ << indent << "kind: " << config.kind() << comment(join(path, "kind")) << '\n';
    }
    C::visit(config, [&](std::string_view name, const auto& member, auto&&...) {
      os_ << indent << name << ':';
      print_value(member, indent + "  ", join(path, name));
    });
  }

 private:
  template <class T>
  void print_value(const T& value, const std::string& indent, const std::string& path) {
    if constexpr (kIsOptional<T>) {
      if (value) return print_value(*value, indent, path);
      os_ << " null" << comment(path) << '\n';
    } else if constexpr (Config<T>) {
      bool empty = true;
      T::visit(value, [&](std::string_view, const auto&, auto&&...) { empty = false; });
      if constexpr (Choice<T>) {
        if (empty) {
          os_ << ' ' << value.kind() << comment(join(path, "kind")) << '\n';
          return;
        }
      }
      os_ << (empty ? " {}\n" : "\n");
      print_section(value, indent, path);
    } else if constexpr (kIsList<T>) {
      os_ << (value.empty() ? " []" + comment(path) + '\n' : "\n");
      for (size_t i = 0; i < value.size(); ++i) {
        os_ << indent << '-';
        print_value(value[i], indent + "  ", join(path, i));
      }
    } else {
      os_ << ' ' << to_text(value) << comment(path) << '\n';
    }
  }

  std::string comment(const std::string& path) const;

  std::ostream& os_;
  const Sources& sources_;
};

using Flat = std::vector<std::pair<std::string, std::string>>;

template <class T>
void flatten_into(const T& value, const std::string& path, Flat& out) {
  if constexpr (kIsOptional<T>) {
    if (value) return flatten_into(*value, path, out);
    out.emplace_back(path, "null");
  } else if constexpr (Config<T>) {
    if constexpr (Choice<T>) out.emplace_back(join(path, "kind"), value.kind());
    T::visit(value, [&](std::string_view name, const auto& member, auto&&...) {
      flatten_into(member, join(path, name), out);
    });
  } else if constexpr (kIsList<T>) {
    if (value.empty()) out.emplace_back(path, "[]");
    for (size_t i = 0; i < value.size(); ++i) flatten_into(value[i], join(path, i), out);
  } else {
    out.emplace_back(path, to_text(value));
  }
}

}  // namespace troupe::detail
