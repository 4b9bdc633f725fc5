// Another program's YAML as questions: what stands at a path, with its place. What was asked for
// counts as used; the rest is for a table.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/config/yaml.h"
#include "troupe/train/recipe/foreign/draft.h"

namespace troupe {

// What becomes of a path, or of all under it where it ends in ".*".
struct TreeRule {
  enum What { kField, kIgnored, kDeferred, kRefused };
  std::string_view path;
  What what;
  std::string_view text;  // the field, or the reason
};

class Tree {
 public:
  // `${name}` is replaced by the scalar at that path, or at "variables.name"; where that is null,
  // so is what names it. E2005 where values and the paths to them grow over 16 MiB.
  Tree(const Yaml& root, Draft& draft);

  bool given(const std::string& path);  // a scalar other than null, or a list
  bool section(const std::string& path) const;
  std::string text(const std::string& path, const std::string& otherwise = "");
  std::vector<std::string> list(const std::string& path);
  bool yes(const std::string& path, bool otherwise);
  double number(const std::string& path, double otherwise);
  int64_t whole(const std::string& path, int64_t otherwise);
  Origin origin(const std::string& path, const std::string& otherwise = "");
  std::vector<std::string> names(const std::string& section) const;  // of its fields

  // Settles what nobody asked for by the rules, the first that fits; what none names is refused,
  // but for what other values name and what is empty.
  void settle(std::span<const TreeRule> rules);

 private:
  struct Leaf {
    std::string path, text;
    std::vector<std::string> items = {};
    Where where = {};
  };
  void add(const Yaml& y, const std::string& path);
  void count(size_t bytes, const Where& where);
  void index();
  const Leaf* leaf_at(const std::string& path) const;
  static Origin origin_of(const Leaf& leaf);
  bool resolve(Leaf& leaf);  // false: it names what is null
  const Leaf* find(const std::string& path);
  void unknown(const Leaf& leaf, std::span<const TreeRule> rules);

  Draft& draft_;
  std::vector<Leaf> leaves_;
  std::map<std::string, size_t> places_;  // of the first leaf of each path
  size_t bytes_ = 0;
  std::set<std::string> nulls_, named_;
  std::set<std::string> used_;
};

}  // namespace troupe
