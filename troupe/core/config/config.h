// Configs are plain structs. Each lists its fields once, in `visit`, and everything that needs the
// list is written over it:
//   static void visit(auto& c, auto&& f) { f("top_k", c.top_k, "Experts per token, K (1 to E)."); }
// with a field's bounds behind its help (facts.h)
//
//   read_config(load_yaml(path), config)        a recipe; what it does not name keeps its default
//   read_config(override_yaml("a.b=8"), config) one `--set`: a recipe of one field
//   print_config(os, config)                    a recipe again, every field written out
//   flatten(config), same(a, b)                 all values by path; equality
//   describe(config)                            types, defaults and help (config_describe.h)
// A field is a number, bool, string, enum, unit (units.h), section, choice of sections (OneOf),
// list of any of these (std::vector), or one that may be absent (std::optional, in YAML null).
//
// A struct that holds such fields needs no include; this header is for those who read or print.
#pragma once

#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/config/config_print.h"
#include "troupe/core/config/config_read.h"

namespace troupe {

// "a.b=8"; the value may be any YAML. Faults name it after the option of the command line.
Yaml override_yaml(const std::string& assignment, const std::string& option = "--set");

namespace detail {

template <Config C>
Reader read_by_reader(const Yaml& y, C& config, bool as_meant = false) {
  const auto list_paths = [&config] {
    std::vector<std::string> out;
    collect_paths(config, "", out);
    return out;
  };
  std::span<const Alias> aliases;
  if constexpr (HasAliases<C>) aliases = C::aliases();
  Reader reader(list_paths, aliases, as_meant);
  reader.read(y, "", config);
  return reader;
}

}  // namespace detail

// Throws one Error that names every fault, a line each, as "file:line: code what".
template <Config C>
Sources read_config(const Yaml& y, C& config) {
  return detail::read_by_reader(y, config).finish();
}

// What of a document was not read, and why.
struct Unread {
  std::vector<std::string> paths;  // fields that were refused, and sections with a name like none
  std::optional<Error> faults;     // a line each; nothing: all was read
};

// The same, without throwing: `config` has what could be read, for who judges that too. With
// `as_meant` the value of an unknown name is read as that of the field of its section that is most
// like it.
template <Config C>
Sources read_config(const Yaml& y, C& config, Unread& unread, bool as_meant = false) {
  return detail::read_by_reader(y, config, as_meant).finish(unread.paths, unread.faults);
}

// With `sources`, each value that was given ends in "  # where".
template <Config C>
void print_config(std::ostream& os, const C& config, const Sources& sources = {}) {
  detail::Printer(os, sources).print_section(config, "", "");
}

// (path, text) of every value, in the order of visit: ("mix[0].weight", "2"). What print_config, a
// diff of two configs and a hash of one have in common.
template <Config C>
detail::Flat flatten(const C& config) {
  detail::Flat out;
  detail::flatten_into(config, "", out);
  return out;
}

// (old path, path) of every field that had another name: "moe.router.centre", "moe.router.center".
template <Config C>
detail::Flat old_names(const C& config) {
  detail::Flat out;
  detail::collect_old_names(config, "", out);
  return out;
}

// The same values, down to the bits of every float.
template <Config C>
bool same(const C& a, const C& b) {
  return flatten(a) == flatten(b);
}

}  // namespace troupe
