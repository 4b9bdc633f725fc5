#include "troupe/train/recipe/foreign/tree.h"

#include <algorithm>
#include <span>

#include "troupe/core/check.h"
#include "troupe/core/text/suggest.h"

namespace troupe {
namespace {

bool fits(std::string_view rule, std::string_view path) {
  if (!rule.ends_with(".*")) return rule == path;
  rule.remove_suffix(2);
  return path.starts_with(rule) && (path.size() == rule.size() || path[rule.size()] == '.');
}

}  // namespace

Tree::Tree(const Yaml& root, Draft& draft) : draft_(draft) {
  add(root, "");
  index();
  std::vector<Leaf> resolved;  // apart, as each looks among all
  for (const Leaf& leaf : leaves_) {
    Leaf copy = leaf;
    if (resolve(copy)) resolved.push_back(std::move(copy));
  }
  leaves_ = std::move(resolved);
  index();
}

// A short name stands for a long value, and a long key is in the path of each that is below it.
void Tree::count(size_t bytes, const Where& where) {
  constexpr size_t kMostBytes = size_t{16} << 20;
  bytes_ += bytes;
  if (bytes_ <= kMostBytes) return;
  fail(Code::kBadValue, to_text(where),
       "the values and the paths to them grow over 16 MiB once ${names} are replaced; a file of "
       "settings holds some KB");
}

void Tree::index() {
  places_.clear();
  for (size_t i = 0; i < leaves_.size(); ++i) places_.try_emplace(leaves_[i].path, i);
}

const Tree::Leaf* Tree::leaf_at(const std::string& path) const {
  const auto found = places_.find(path);
  return found == places_.end() ? nullptr : &leaves_[found->second];
}

void Tree::add(const Yaml& y, const std::string& path) {
  if (y.kind == Yaml::Kind::kMap && !y.fields.empty()) {
    for (const Yaml::Field& field : y.fields) {
      std::string inner = path;
      if (!path.empty()) inner += '.';
      add(field.value, inner.append(field.name));
    }
    return;
  }
  count(path.size() + y.text.size(), y.where);
  if (y.kind == Yaml::Kind::kNull) return void(nulls_.insert(path));
  Leaf leaf{.path = path, .text = y.text, .where = y.where};
  if (y.kind == Yaml::Kind::kMap) leaf.text = "{}";
  if (y.kind == Yaml::Kind::kList && y.items.empty()) leaf.text = "[]";
  for (const Yaml& item : y.items) {
    leaf.items.push_back(item.text);
    leaf.text += (leaf.text.empty() ? "" : ", ") + item.text;
  }
  leaves_.push_back(std::move(leaf));
}

bool Tree::resolve(Leaf& leaf) {
  for (int rounds = 0; rounds < 8; ++rounds) {  // a variable may name another
    const auto begin = leaf.text.find("${");
    const auto end = leaf.text.find('}', begin);
    if (begin == std::string::npos || end == std::string::npos) return true;
    const std::string name = leaf.text.substr(begin + 2, end - begin - 2);
    const bool whole = begin == 0 && end + 1 == leaf.text.size();
    if (whole && (nulls_.contains(name) || nulls_.contains("variables." + name))) return false;
    const Leaf* const own = leaf_at(name);
    const Leaf* const variable = leaf_at("variables." + name);
    if (own == nullptr && variable == nullptr) return true;
    const Leaf* const found = own == nullptr        ? variable
                              : variable == nullptr ? own
                                                    : std::min(own, variable);  // as written first
    named_.insert(found->path);
    count(found->text.size(), leaf.where);
    leaf.text.replace(begin, end - begin + 1, found->text);
  }
  return true;
}

const Tree::Leaf* Tree::find(const std::string& path) {
  used_.insert(path);
  return leaf_at(path);
}

bool Tree::given(const std::string& path) {
  return find(path) != nullptr;
}

bool Tree::section(const std::string& path) const {
  return !names(path).empty();
}

std::vector<std::string> Tree::names(const std::string& section) const {
  std::vector<std::string> out;
  const std::string within = section + '.';
  for (const Leaf& leaf : leaves_) {
    if (!leaf.path.starts_with(within)) continue;
    const std::string rest = leaf.path.substr(within.size());
    const std::string name = rest.substr(0, rest.find('.'));
    if (out.empty() || out.back() != name) out.push_back(name);
  }
  return out;
}

std::string Tree::text(const std::string& path, const std::string& otherwise) {
  const Leaf* const leaf = find(path);
  return leaf == nullptr ? otherwise : leaf->text;
}

std::vector<std::string> Tree::list(const std::string& path) {
  const Leaf* const leaf = find(path);
  return leaf == nullptr ? std::vector<std::string>() : leaf->items;
}

bool Tree::yes(const std::string& path, bool otherwise) {
  const std::string value = normalized(text(path, otherwise ? "true" : "false"));
  if (value == "true" || value == "yes" || value == "on") return true;
  if (value == "false" || value == "no" || value == "off" || value == "none") return false;
  draft_.refuse(origin(path), "true or false is expected");
  return otherwise;
}

double Tree::number(const std::string& path, double otherwise) {
  double out = otherwise;
  const Leaf* const leaf = find(path);
  if (leaf == nullptr || from_text(leaf->text, out)) return out;
  draft_.refuse(origin(path), "a number is expected");
  return otherwise;
}

int64_t Tree::whole(const std::string& path, int64_t otherwise) {
  int64_t out = otherwise;
  const Leaf* const leaf = find(path);
  if (leaf == nullptr || from_text(leaf->text, out)) return out;
  draft_.refuse(origin(path), "a whole number is expected");
  return otherwise;
}

Origin Tree::origin_of(const Leaf& leaf) {
  return {leaf.path + ": " + leaf.text, to_text(leaf.where)};
}

Origin Tree::origin(const std::string& path, const std::string& otherwise) {
  const Leaf* const leaf = find(path);
  if (leaf != nullptr) return origin_of(*leaf);
  return {path + (otherwise.empty() ? " not given" : ": " + otherwise + ", its default"), ""};
}

void Tree::unknown(const Leaf& leaf, std::span<const TreeRule> rules) {
  std::vector<std::string_view> names;
  for (const TreeRule& rule : rules) names.push_back(rule.path);
  for (const std::string& path : used_) names.push_back(path);
  draft_.refuse_unknown(origin_of(leaf), "key", leaf.path, names);
}

void Tree::settle(std::span<const TreeRule> rules) {
  for (const Leaf& leaf : leaves_) {
    if (used_.contains(leaf.path)) continue;
    const Origin origin = origin_of(leaf);
    const auto rule = std::find_if(rules.begin(), rules.end(),
                                   [&](const TreeRule& r) { return fits(r.path, leaf.path); });
    if (leaf.text.empty() || leaf.text == "[]") {
      draft_.ignore(origin, "empty");
    } else if (rule == rules.end() && named_.contains(leaf.path)) {
      draft_.ignore(origin, "used where it is named");
    } else if (rule == rules.end()) {
      unknown(leaf, rules);
    } else if (rule->what == TreeRule::kRefused && leaf.text == "{}") {
      draft_.ignore(origin, "empty");
    } else if (rule->what == TreeRule::kIgnored) {
      draft_.ignore(origin, rule->text);
    } else if (rule->what == TreeRule::kDeferred) {
      draft_.defer(origin, rule->text);
    } else if (rule->what == TreeRule::kRefused) {
      draft_.refuse(origin, std::string(rule->text));
    } else {
      draft_.set(std::string(rule->text), leaf.text, origin);
    }
  }
}

}  // namespace troupe
