// The keys of a config.json, listed once for reading and writing:
//   keys.field({"num_local_experts", "num_experts"}, c.moe.experts, int64_t{8});
// reads the first of the names that is there and not null, else takes the class default, or writes
// the first name. What was never listed is unknown: kept as text, and reported. The error for
// a number that turns out to be wrong later names its key by place_of().
#pragma once

#include <nlohmann/json.hpp>

#include <cmath>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {

using Json = nlohmann::ordered_json;

// JSON that parse_json() has accepted, its names in their order.
Json parse_in_order(const std::string& text);

class HfKeys {
 public:
  // `json` outlives it: what is read, or an object to write into.
  HfKeys(Json& json, bool reads, std::string place)
      : json_(json), reads_(reads), place_(std::move(place)) {}

  bool reads() const { return reads_; }
  const std::string& place() const { return place_; }
  bool has(const char* name) const { return json_.contains(name) && !json_[name].is_null(); }

  // null counts: what a class takes for a key that is missing may be another thing.
  bool is_missing(const char* name) const { return !json_.contains(name); }

  template <class T>
  void field(std::initializer_list<const char*> names, T& value, const T& absent) {
    if (!reads_) return put(*names.begin(), value);
    const char* found = nullptr;
    for (const char* name : names) {
      known_.insert(name);
      if (found != nullptr || !has(name)) continue;
      value = as<T>(name);
      found = name;
    }
    if (found == nullptr) value = absent;
    (*places_)[&value] = place_ + (found == nullptr ? *names.begin() : found);
  }

  // null and a missing key say the same.
  template <class T>
  void optional(std::initializer_list<const char*> names, std::optional<T>& value) {
    if (!reads_) return value ? put(*names.begin(), *value) : void(json_[*names.begin()] = nullptr);
    value.reset();
    for (const char* name : names) {
      known_.insert(name);
      if (!value && has(name)) value = as<T>(name);
    }
  }

  // The one value that is supported; missing means that too.
  template <class T>
  void only(const char* name, const T& value) {
    T found = value;
    field({name}, found, value);
    if (found != value) refuse(name, "is supported as " + Json(value).dump() + " alone");
  }

  // Without effect on the mathematics: kept as it is.
  void pass(std::initializer_list<const char*> names, Json& kept) {
    for (const char* name : names) {
      known_.insert(name);
      if (reads_ && json_.contains(name)) kept[name] = json_[name];
      if (!reads_ && kept.contains(name)) json_[name] = kept[name];
    }
  }

  // The object under a name, read or made; a missing one is empty.
  HfKeys section(const char* name) {
    known_.insert(name);
    Json& inner = json_[name];
    if (inner.is_null()) inner = Json::object();
    if (!inner.is_object()) refuse(name, "is not an object");
    HfKeys out(inner, reads_, place_ + name + '.');
    out.places_ = places_;
    return out;
  }

  Json& at(const char* name) {
    known_.insert(name);
    return json_[name];
  }

  // Names are distinct: adding one needs no search among the others, of which a file may have
  // 100,000.
  Json unknown() const {
    Json::object_t out;
    for (const auto& [name, value] : json_.get_ref<const Json::object_t&>()) {
      if (!known_.contains(name)) out.emplace_back(name, value);
    }
    return out;
  }

  // The key that the number was read from, here or in a section, "config.json: hidden_size"; of
  // what no key gives, `ours`.
  std::string place_of(const void* number, const std::string& ours) const {
    const auto at = places_->find(number);
    return at == places_->end() ? place_ + ours : at->second;
  }

  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    const std::string value = json_.contains(name) ? json_[name].dump().substr(0, 200) : "absent";
    fail(Code::kBadModelConfig, place_ + name, "is", value + ';', what);
  }

  template <class T>
  T as(const char* name) const {
    const Json& value = json_[name];
    if constexpr (std::is_same_v<T, bool>) {
      if (!value.is_boolean()) refuse(name, "true or false is expected");
    } else if constexpr (std::is_integral_v<T>) {
      // 128.0 is a size too: some writers have no integers.
      const bool whole = value.is_number_float() &&
                         std::trunc(value.get<double>()) == value.get<double>() &&
                         std::abs(value.get<double>()) < 1e15;
      if (!value.is_number_integer() && !whole) refuse(name, "a whole number is expected");
      constexpr double kMost = int64_t{1} << 40;  // of any count; nothing is computed with more
      if (std::abs(value.get<double>()) > kMost) refuse(name, "is too large");
      if (value.get<double>() < 0) refuse(name, "must not be negative");
    } else if constexpr (std::is_floating_point_v<T>) {
      if (!value.is_number()) refuse(name, "a number is expected");
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!value.is_string()) refuse(name, "text is expected");
    }
    return value.get<T>();
  }

 private:
  template <class T>
  void put(const char* name, const T& value) {
    json_[name] = value;
  }

  Json& json_;
  const bool reads_;
  const std::string place_;
  std::set<std::string> known_;
  std::shared_ptr<std::map<const void*, std::string>> places_ =
      std::make_shared<std::map<const void*, std::string>>();
};

}  // namespace troupe
