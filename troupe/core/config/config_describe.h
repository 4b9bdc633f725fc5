// What a config can hold, for help and for editors.
//   describe(Recipe())          every path with its type, default and help
//   write_schema(os, Recipe())  a JSON schema of its YAML
// Help stands beside the field, as the third argument of f in visit(), and kHelp beside each kind
// of a OneOf. Neither compiles for a config in which a field or a kind has none.
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
  std::string path;          // "train.optimizer.lr"; of a list's items "data.train[].path"
  std::string type = {};     // "a number", "one of rms, layer", "a section", "a list of ..."
  std::string value = {};    // the default; "" of sections and lists
  std::string help = {};     // "Peak learning rate."
  std::string only_of = {};  // the kinds of the section that have it, "wsd"; "": all, or no kinds
};

namespace detail {

template <class T>
std::string type_text(const T& value) {
  if constexpr (requires { expectation("", value); }) {
    return expectation("", value).wanted;
  } else {
    return "a string";
  }
}

// All kinds' fields, each once, with the kinds that have it.
class Describer {
 public:
  explicit Describer(std::vector<FieldInfo>& out) : out_(out) {}

  template <Config C>
  void section(const C& config, const std::string& path, const std::string& kind = "") {
    if constexpr (Choice<C>) {
      add({.path = join(path, "kind"),
           .type = std::string("one of ").append(joined(C::kinds())),
           .value = std::string(config.kind()),
           .help = C::kinds_help(),
           .only_of = kind});
      C other;
      const size_t begin = out_.size();
      for (const std::string_view name : C::kinds()) {
        other.select(name);
        fields(name == config.kind() ? config : other, path, std::string(name));
      }
      const std::string all = joined(C::kinds());
      for (size_t i = begin; i < out_.size(); ++i) {
        if (out_[i].only_of == all) out_[i].only_of = kind;
      }
    } else {
      fields(config, path, kind);
    }
  }

 private:
  template <Config C>
  void fields(const C& config, const std::string& path, const std::string& kind) {
    C::visit(
        config, [&](std::string_view name, const auto& member, std::string_view help, auto&&...) {
          field(member, {.path = join(path, name), .help = std::string(help), .only_of = kind});
        });
  }

  // `info` has all but type and default.
  template <class T>
  void field(const T& value, const FieldInfo& info) {
    if constexpr (kIsOptional<T>) {
      using Inside = typename T::value_type;
      if constexpr (Config<Inside>) {
        add_section(Inside{}, info, "a section, or null", "null");
      } else {
        add(with(info, type_text(Inside{}) + ", or null", value ? to_text(*value) : "null"));
      }
    } else if constexpr (Config<T>) {
      add_section(value, info, "a section", "");
    } else if constexpr (kIsList<T>) {
      using Item = typename T::value_type;
      if constexpr (Config<Item>) {
        add(with(info, "a list of sections", "[]"));
        section(Item{}, info.path + "[]", info.only_of);
      } else {
        std::string items;
        for (const auto& item : value) items += (items.empty() ? "" : ", ") + to_text(item);
        add(with(info, std::string("a list, each ").append(type_text(Item{})),
                 std::string("[").append(items).append("]")));
      }
    } else {
      add(with(info, type_text(value), to_text(value)));
    }
  }

  template <Config C>
  void add_section(const C& config, const FieldInfo& info, const char* type, const char* value) {
    add(with(info, type, value));
    section(config, info.path, info.only_of);
  }

  static FieldInfo with(const FieldInfo& info, std::string type, std::string value) {
    return {.path = info.path,
            .type = std::move(type),
            .value = std::move(value),
            .help = info.help,
            .only_of = info.only_of};
  }

  // A path that another kind has too: that kind is added to it.
  void add(FieldInfo info) {
    for (FieldInfo& known : out_) {
      if (known.path != info.path) continue;
      if (!info.only_of.empty()) known.only_of += ", " + info.only_of;
      return;
    }
    out_.push_back(std::move(info));
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

class SchemaWriter {
 public:
  explicit SchemaWriter(std::ostream& os) : os_(os) {}

  template <class T>
  void value(const T& x, std::string_view help) {
    if constexpr (kIsOptional<T>) {
      os_ << "{\"anyOf\":[";
      value(typename T::value_type{}, help);
      os_ << ",{\"type\":\"null\"}]}";
    } else if constexpr (Choice<T>) {  // its kind alone, or a section
      os_ << '{' << about(help) << "\"anyOf\":[{\"enum\":[" << words(T::kinds()) << "]},{";
      section(x);
      os_ << "}]}";
    } else if constexpr (Config<T>) {
      os_ << '{' << about(help);
      section(x);
      os_ << '}';
    } else if constexpr (kIsList<T>) {
      os_ << '{' << about(help) << "\"type\":\"array\",\"items\":";
      value(typename T::value_type{}, "");
      os_ << '}';
    } else {
      os_ << '{' << about(help) << scalar(x) << '}';
    }
  }

 private:
  template <class C>
  void section(const C& config) {
    os_ << "\"type\":\"object\",\"additionalProperties\":false,\"properties\":{";
    properties(config);
    os_ << '}';
  }

  static std::string about(std::string_view help) {
    return help.empty() ? "" : "\"description\":" + to_text(std::string(help)) + ',';
  }

  template <class C>
  void properties(const C& config) {
    std::vector<std::string> seen;
    if constexpr (Choice<C>) {
      os_ << "\"kind\":{" << about(C::kinds_help()) << "\"enum\":[" << words(C::kinds()) << "]}";
      seen.emplace_back("kind");
      C other;
      for (const std::string_view name : C::kinds()) {
        other.select(name);
        fields(other, seen);
      }
    } else {
      fields(config, seen);
    }
  }

  template <class C>
  void fields(const C& config, std::vector<std::string>& seen) {
    C::visit(config,
             [&](std::string_view name, const auto& member, std::string_view help, auto&&...) {
               for (const std::string& known : seen) {
                 if (known == name) return;
               }
               os_ << (seen.empty() ? "" : ",") << '"' << name << "\":";
               seen.emplace_back(name);
               value(member, help);
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
};

}  // namespace detail

template <Config C>
void write_schema(std::ostream& os, const C& config) {
  detail::SchemaWriter(os).value(config, "");
}

}  // namespace troupe
