// Builds a Yaml from a parser's events, for the parsers of YAML and JSON. What is open is a stack,
// so that depth costs no recursion, and every limit holds while the text is being read.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/codes.h"
#include "troupe/core/config/yaml.h"

namespace troupe::detail {

inline Yaml null_value(Where where) {
  Yaml out;
  out.where = std::move(where);
  return out;
}

inline Yaml scalar_value(Where where, std::string text) {
  Yaml out = null_value(std::move(where));
  out.kind = Yaml::Kind::kScalar;
  out.text = std::move(text);
  return out;
}

// Of a whole tree; its bytes without the text at its root.
struct YamlExtent {
  size_t depth = 0, values = 1, bytes = 0;
};

class YamlBuilder {
 public:
  struct Limits {
    size_t depth;
    size_t values;  // names included, aliases written out
    size_t bytes;   // of names and texts alike
    Code malformed;
    Code written_twice;
  };

  explicit YamlBuilder(const Limits& limits) : limits_(limits) {}

  void open(Yaml::Kind kind, const Where& where);  // a list or a map; what follows goes into it
  Yaml close();                                    // to be added by the caller
  // A value; in a map names and values take turns. `extent`: as far as the tree was not counted when
  // it was built here.
  void add(Yaml value, const YamlExtent& extent = {});

  Yaml take() { return std::move(root_); }

 private:
  struct Open {
    Yaml value;
    std::set<std::string> names = {};  // of a map
    bool awaits_value = false;         // a name came last
  };

  void check_depth(size_t depth, const Where& where) const;
  void add_name(Open& map, const Yaml& name);

  const Limits limits_;
  std::vector<Open> open_;
  Yaml root_;
  size_t values_ = 0, bytes_ = 0;
};

}  // namespace troupe::detail
