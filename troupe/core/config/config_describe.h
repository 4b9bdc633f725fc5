// What a config can hold, told from its fields alone: for help and for editors.
//   describe(Recipe())               every path with its type and default
//   write_schema(os, Recipe(), text) a JSON schema of its YAML; text(path) describes a field
#pragma once

#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/core/config/config_traits.h"
#include "troupe/core/text/text.h"

namespace troupe {

struct FieldInfo {
  std::string path;     // "train.optimizer.lr"; of a list's items "data.train[].path"
  std::string type;     // "a number", "one of rms, layer", "a section", "a list of ..."
  std::string value;    // the default; "" of sections and lists
  std::string only_of;  // the kinds of the section that have it: "wsd"; "": all, or there are none
};

namespace detail {

template <class T>
std::string type_text(const T& value) {
  if constexpr (requires { expectation("", value); }) {
    return expectation("", value).wanted;
  } else {
    return "a text";
  }
}

// All kinds' fields, each once, with the kinds that have it.
class Describer {
 public:
  explicit Describer(std::vector<FieldInfo>& out) : out_(out) {}

  template <Config C>
  void section(const C& config, const std::string& path, const std::string& kind = "") {
    if constexpr (Choice<C>) {
      add(join(path, "kind"), std::string("one of ").append(joined(C::kinds())),
          std::string(config.kind()), kind);
      C other;
      for (const std::string_view name : C::kinds()) {
        other.select(name);
        fields(name == config.kind() ? config : other, path, std::string(name));
      }
    } else {
      fields(config, path, kind);
    }
  }

 private:
  template <Config C>
  void fields(const C& config, const std::string& path, const std::string& kind) {
    C::visit(config, [&](std::string_view name, const auto& member) {
      field(member, join(path, name), kind);
    });
  }

  template <class T>
  void field(const T& value, const std::string& path, const std::string& kind) {
    if constexpr (kIsOptional<T>) {
      using Inside = typename T::value_type;
      if constexpr (Config<Inside>) {
        if (add(path, "a section, or null", "null", kind)) section(Inside{}, path, kind);
      } else {
        add(path, type_text(Inside{}) + ", or null", value ? to_text(*value) : "null", kind);
      }
    } else if constexpr (Config<T>) {
      if (add(path, "a section", "", kind)) section(value, path, kind);
    } else if constexpr (kIsList<T>) {
      using Item = typename T::value_type;
      if constexpr (Config<Item>) {
        if (add(path, "a list of sections", "[]", kind)) section(Item{}, path + "[]", kind);
      } else {
        std::string items;
        for (const auto& item : value) items += (items.empty() ? "" : ", ") + to_text(item);
        add(path, std::string("a list, each ").append(type_text(Item{})),
            std::string("[").append(items).append("]"), kind);
      }
    } else {
      add(path, type_text(value), to_text(value), kind);
    }
  }

  // True where the path is new.
  bool add(const std::string& path, const std::string& type, const std::string& value,
           const std::string& kind) {
    for (FieldInfo& known : out_) {
      if (known.path != path) continue;
      if (!kind.empty()) known.only_of += ", " + kind;
      return false;
    }
    out_.push_back({path, type, value, kind});
    return true;
  }

  std::vector<FieldInfo>& out_;
};

}  // namespace detail

template <Config C>
std::vector<FieldInfo> describe(const C& config) {
  std::vector<FieldInfo> out;
  detail::Describer(out).section(config, "");
  return out;
}

namespace detail {

template <class Text>
class SchemaWriter {
 public:
  SchemaWriter(std::ostream& os, const Text& text) : os_(os), text_(text) {}

  template <class T>
  void value(const T& x, const std::string& path) {
    if constexpr (kIsOptional<T>) {
      os_ << "{\"anyOf\":[";
      value(typename T::value_type{}, path);
      os_ << ",{\"type\":\"null\"}]}";
    } else if constexpr (Config<T>) {
      os_ << '{' << about(path) << "\"type\":\"object\",\"additionalProperties\":false,"
          << "\"properties\":{";
      properties(x, path);
      os_ << "}}";
    } else if constexpr (kIsList<T>) {
      os_ << '{' << about(path) << "\"type\":\"array\",\"items\":";
      value(typename T::value_type{}, path + "[]");
      os_ << '}';
    } else {
      os_ << '{' << about(path) << scalar(x) << '}';
    }
  }

 private:
  std::string about(const std::string& path) const {
    const std::string text = text_(path);
    std::string out;
    if (!text.empty()) out.append("\"description\":").append(to_text(text)).append(",");
    return out;
  }

  template <class C>
  void properties(const C& config, const std::string& path) {
    std::vector<std::string> seen;
    if constexpr (Choice<C>) {
      os_ << "\"kind\":{\"enum\":[" << words(C::kinds()) << "]}";
      seen.emplace_back("kind");
      C other;
      for (const std::string_view name : C::kinds()) {
        other.select(name);
        fields(other, path, seen);
      }
    } else {
      fields(config, path, seen);
    }
  }

  template <class C>
  void fields(const C& config, const std::string& path, std::vector<std::string>& seen) {
    C::visit(config, [&](std::string_view name, const auto& member) {
      for (const std::string& known : seen) {
        if (known == name) return;
      }
      os_ << (seen.empty() ? "" : ",") << '"' << name << "\":";
      seen.emplace_back(name);
      value(member, join(path, name));
    });
  }

  static std::string words(const std::vector<std::string_view>& names) {
    std::string out;
    for (const std::string_view name : names) {
      if (!out.empty()) out += ',';
      out += to_text(std::string(name));
    }
    return out;
  }

  // YAML gives an editor 4096 for what may also be "4K", and 1 for the text "1".
  template <class T>
  static std::string scalar(const T& x) {
    if constexpr (std::is_same_v<T, bool>) {
      return "\"type\":\"boolean\"";
    } else if constexpr (std::is_integral_v<T>) {
      return "\"type\":\"integer\"";
    } else if constexpr (std::is_floating_point_v<T>) {
      return "\"type\":\"number\"";
    } else if constexpr (NamedEnum<T>) {
      std::vector<std::string_view> names;
      for (const auto& [name, unused] : names_of(x)) names.push_back(name);
      return std::string("\"enum\":[").append(words(names)).append("]");
    } else {
      return "\"type\":[\"string\",\"number\",\"boolean\"]";
    }
  }

  std::ostream& os_;
  const Text& text_;
};

}  // namespace detail

template <Config C, class Text>
void write_schema(std::ostream& os, const C& config, const Text& text) {
  detail::SchemaWriter<Text>(os, text).value(config, "");
}

}  // namespace troupe
