#include "troupe/core/config/yaml_builder.h"

#include "troupe/core/check.h"

namespace troupe::detail {

void YamlBuilder::check_depth(size_t depth, const Where& where) const {
  if (depth <= limits_.depth) return;
  fail(limits_.malformed, to_text(where), "nested deeper than", limits_.depth);
}

void YamlBuilder::open(Yaml::Kind kind, const Where& where) {
  check_depth(open_.size() + 1, where);
  Open& top = open_.emplace_back();
  top.value.kind = kind;
  top.value.where = where;
}

Yaml YamlBuilder::close() {
  Yaml value = std::move(open_.back().value);
  open_.pop_back();
  return value;
}

void YamlBuilder::add(Yaml value, const YamlExtent& extent) {
  check_depth(open_.size() + extent.depth, value.where);
  values_ += extent.values;
  bytes_ += extent.bytes + value.text.size();
  if (values_ > limits_.values) {
    fail(limits_.malformed, to_text(value.where), "more values than", limits_.values);
  }
  if (bytes_ > limits_.bytes) {
    fail(limits_.malformed, to_text(value.where), "more text than", limits_.bytes,
         "bytes once aliases are written out");
  }
  if (open_.empty()) {
    root_ = std::move(value);
  } else if (open_.back().value.kind == Yaml::Kind::kList) {
    open_.back().value.items.push_back(std::move(value));
  } else if (!std::exchange(open_.back().awaits_value, !open_.back().awaits_value)) {
    add_name(open_.back(), value);
  } else {
    open_.back().value.fields.back().value = std::move(value);
  }
}

// One of two equal names would be lost without a word.
void YamlBuilder::add_name(Open& map, const Yaml& name) {
  if (name.kind != Yaml::Kind::kScalar) {
    fail(limits_.malformed, to_text(name.where), "a field's name must be plain text");
  }
  if (!map.names.insert(name.text).second) {
    fail(limits_.written_twice, to_text(name.where),
         "field \"" + name.text + "\" is written twice");
  }
  map.value.fields.push_back({name.text, name.where, {}});
}

}  // namespace troupe::detail
