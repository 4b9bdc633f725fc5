// The reader behind read_config.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/config/config_traits.h"
#include "troupe/core/config/facts.h"
#include "troupe/core/text/text.h"

namespace troupe::detail {

// The paths of all fields and sections that exist now, to tell where a misplaced one belongs.
template <class T>
void collect_paths(const T& value, const std::string& path, std::vector<std::string>& out) {
  if constexpr (kIsOptional<T>) {
    collect_paths(value ? *value : typename T::value_type(), path, out);
  } else if constexpr (Config<T>) {
    T::visit(value, [&](std::string_view name, const auto& member, auto&&...) {
      const std::string inner = join(path, name);  // a copy: `out` moves as it grows
      out.push_back(inner);
      collect_paths(member, inner, out);
    });
  }
}

// (old path, path) of every field that had another name.
template <class T>
void collect_old_names(const T& value, const std::string& path,
                       std::vector<std::pair<std::string, std::string>>& out) {
  if constexpr (kIsOptional<T>) {
    if (value) collect_old_names(*value, path, out);
  } else if constexpr (kIsList<T>) {
    for (size_t i = 0; i < value.size(); ++i) collect_old_names(value[i], join(path, i), out);
  } else if constexpr (Config<T>) {
    T::visit(value, [&](std::string_view name, const auto& member, const auto&... about) {
      const OldName* const old = fact_of<OldName>(about...);
      if (old != nullptr) out.emplace_back(join(path, old->name), join(path, name));
      collect_old_names(member, join(path, name), out);
    });
  }
}

// Reads what it can and keeps all faults, so that a user sees them at once.
class Reader {
 public:
  // `list_paths` is called at the first field with an unknown name: listing all paths takes longer
  // than reading one value.
  using ListPaths = std::function<std::vector<std::string>()>;
  explicit Reader(ListPaths list_paths, std::span<const Alias> aliases = {}, bool as_meant = false)
      : list_paths_(std::move(list_paths)), aliases_(aliases), as_meant_(as_meant) {}

  template <class T>
  void read(const Yaml& y, const std::string& path, T& out) {
    if constexpr (kIsOptional<T>) {
      if (y.kind == Yaml::Kind::kNull) return note(y, path), out.reset();
      if (!out) out.emplace();
      read(y, path, *out);
    } else if constexpr (Config<T>) {
      read_section(y, path, out);
    } else if constexpr (kIsList<T>) {
      read_list(y, path, out);
    } else {
      if (y.kind == Yaml::Kind::kScalar && from_text(y.text, out)) return note(y, path);
      if constexpr (requires { expectation(y.text, out); }) {
        refuse(y, path, expectation(y.text, out));
      } else {
        refuse(y, path, {"a value of its kind"});
      }
    }
  }
  Sources finish();  // throws if there were faults
  // Adds to `unread` the fields that were refused, and the sections with a name that is like none.
  Sources finish(std::vector<std::string>& unread, std::optional<Error>& faults);

 private:
  template <class C>
  void read_section(const Yaml& y, const std::string& path, C& out) {
    if constexpr (Choice<C>) {  // "dispatcher: two_level" is short for "dispatcher: {kind:
                                // two_level}"
      if (y.kind == Yaml::Kind::kScalar && out.select(y.text)) return note(y, join(path, "kind"));
    }
    if (y.kind != Yaml::Kind::kMap && y.kind != Yaml::Kind::kNull) {
      if constexpr (Choice<C>) return refuse_choice(y, path, C::kinds());
      return refuse(y, path, {"a section"});
    }
    if constexpr (requires { out.become_null(); }) {  // a type that null means something to
      if (y.kind == Yaml::Kind::kNull) return note(y, path), out.become_null();
    }
    if constexpr (Choice<C>) {
      for (const Yaml::Field& field : y.fields) {
        if (field.name != "kind") continue;
        if (!out.select(field.value.text)) return unknown_kind(field, path, C::kinds());
        note(field.value, join(path, "kind"));
      }
    }
    if constexpr (HasPresets<C>) {
      for (const Yaml::Field& field : y.fields) {
        if (field.name != "preset" || field.value.text.empty()) continue;
        if (!out.select_preset(field.value.text)) return unknown_kind(field, path, C::presets());
      }
    }
    for (const Yaml::Field& field : y.fields) {
      if (!Choice<C> || field.name != "kind") read_field(field, path, out);
    }
  }

  template <class C>
  void read_field(const Yaml::Field& field, const std::string& path, C& out) {
    bool found = false;
    C::visit(out, [&](std::string_view name, auto& member, const auto&... about) {
      const OldName* const old = fact_of<OldName>(about...);
      if (name != field.name && (old == nullptr || old->name != field.name)) return;
      found = true;
      const std::string inner = join(path, name);
      if (sources_.contains(inner)) return given_twice(field, inner);  // by both of its names
      read(field.value, inner, member);
    });
    if (found) return;
    std::vector<std::string_view> names;
    C::visit(out, [&](std::string_view name, auto&, auto&&...) { names.push_back(name); });
    unknown_field(field, path, names);
    read_as_meant(field, path, names, out);
  }

  // With `as_meant` the value of an unknown name goes to the field of this section that is most
  // like it: nobody gets the config, which has a fault, but what else is wrong with its values may
  // be judged, with it and without it.
  template <class C>
  void read_as_meant(const Yaml::Field& field, const std::string& path,
                     const std::vector<std::string_view>& names, C& out) {
    const std::string meant = meant_here(field.name, names);
    bool taken = false;
    C::visit(out, [&](std::string_view name, auto& member, auto&&...) {
      using T = std::remove_reference_t<decltype(member)>;
      if constexpr (!Config<T> && !kIsList<T> && !kIsOptional<T>) {
        if (name != meant || field.value.kind != Yaml::Kind::kScalar) return;
        T value = member;
        taken = from_text(field.value.text, value);
        if (taken && as_meant_) member = std::move(value);
      }
    });
    if (!taken) unread_.push_back(path);
  }

  template <class T>
  void read_list(const Yaml& y, const std::string& path, std::vector<T>& out) {
    if (y.kind != Yaml::Kind::kList) return refuse(y, path, {"a list"});
    if (y.items.empty()) note(y, path);
    out.assign(y.items.size(), T{});
    for (size_t i = 0; i < out.size(); ++i) read(y.items[i], join(path, i), out[i]);
  }

  void note(const Yaml& y, const std::string& path) { sources_[path] = y.where; }
  void refuse(const Yaml& y, const std::string& path, const Expectation& expected);
  void refuse_choice(const Yaml& y, const std::string& path,
                     const std::vector<std::string_view>& kinds);
  void unknown_kind(const Yaml::Field& field, const std::string& path,
                    const std::vector<std::string_view>& kinds);
  void given_twice(const Yaml::Field& field, const std::string& path);
  void unknown_field(const Yaml::Field& field, const std::string& path,
                     const std::vector<std::string_view>& names);
  // The field of a section that a name of none was probably to be; empty: none is like it.
  static std::string meant_here(const std::string& name,
                                const std::vector<std::string_view>& names);
  std::string hint(const std::string& name, const std::string& path,
                   const std::vector<std::string_view>& names);
  void add_fault(Code code, const Where& where, const std::string& what);

  ListPaths list_paths_;
  std::vector<std::string> paths_;  // empty until they are asked for
  std::span<const Alias> aliases_;
  bool as_meant_;
  std::string faults_;
  Code first_ = Code::kBadValue;
  std::vector<std::string> unread_;
  Sources sources_;
};

}  // namespace troupe::detail
