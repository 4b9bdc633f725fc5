// Facts of a field, which stand behind its help in visit(), in any order:
//   f("prefetch", c.prefetch, "Units gathered ahead.", AtMost{1 << 20}, kNotNegative);
// Who walks a config for one of them asks for it by its type, and all others pass it over. So a key's
// bounds are beside the key. A section may have facts of its own (train/recipe/parallel_facts.h).
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace troupe {

struct AtMost {  // of a count, and of a negative one's size: counts_out_of_bounds (counts.h)
  int64_t most;
};

struct NotNegative {};  // negative_fields (counts.h)
inline constexpr NotNegative kNotNegative{};

// A field's earlier name: a recipe or a checkpoint that has it is still read; what is printed and
// saved has the new one.
//   f("center", c.center, "Subtracts the mean after each step.", OldName{"centre"});
struct OldName {
  std::string_view name;
};

// The fact of that type among a field's, or null. It lives as long as the call of the visitor.
template <class Fact, class... Facts>
constexpr const Fact* fact_of(const Facts&... facts) {
  const Fact* out = nullptr;
  [[maybe_unused]] const auto take = [&out](const auto& fact) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(fact)>, Fact>) out = &fact;
  };
  (take(facts), ...);
  return out;
}

}  // namespace troupe
