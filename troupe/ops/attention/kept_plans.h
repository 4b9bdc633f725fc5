// What is dear to make for a key and is asked for again: of those asked for last, `most` are kept.
//
//   KeptPlans<Shape, Plan> plans(512);
//   Plan& plan = plans.get(shape, captured, [&] { return built(shape); });
//
// What was asked for under the capture of a CUDA graph stays for good: the graph launches the plan's
// code at each replay, and cannot give it back, since what it calls when it goes may not call CUDA.
// A capture drops nothing either: to unload code is not allowed meanwhile.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

namespace troupe {

template <class Key, class Value>
class KeptPlans {
 public:
  explicit KeptPlans(size_t most) : most_(most) {}

  // Valid until the next call. `make` gives a unique_ptr; if it throws, nothing is kept.
  template <class Make>
  Value& get(const Key& key, bool captured, Make&& make) {
    auto found = by_key_.find(key);
    if (found == by_key_.end()) {
      if (!captured) make_room();
      found = by_key_.emplace(key, Kept{make()}).first;
    }
    Kept& kept = found->second;
    kept.last_use = ++uses_;
    kept.captured |= captured;
    return *kept.value;
  }

  size_t size() const { return by_key_.size(); }

 private:
  struct Kept {
    std::unique_ptr<Value> value;
    int64_t last_use = 0;
    bool captured = false;  // by a graph, which may be replayed
  };

  void make_room() {
    const auto free = [](const auto& entry) { return !entry.second.captured; };
    if (static_cast<size_t>(std::ranges::count_if(by_key_, free)) < most_) return;
    by_key_.erase(std::ranges::min_element(by_key_, {}, [](const auto& entry) {
      return std::pair(entry.second.captured, entry.second.last_use);
    }));
  }

  size_t most_;
  int64_t uses_ = 0;
  std::map<Key, Kept> by_key_;
};

}  // namespace troupe
