// What each flag of Megatron-LM, and of MegaBlocks' fork of it, becomes.
#pragma once

#include <span>
#include <string_view>

namespace troupe {

struct FlagRule {
  enum What {
    kField,    // its value is the field's
    kSwitch,   // it sets the field to `value`
    kDerived,  // megatron_parts.h: together with others
    kIgnored,  // no effect on any result: `text` says why
    kRefused,  // `text` says why, or what to use instead
  };
  std::string_view name;  // without the dashes
  What what = kDerived;
  std::string_view text = {};  // the field's path, or the reason
  std::string_view value = {};
};

std::span<const FlagRule> flag_rules();
const FlagRule* find_flag(std::string_view name);  // null: there is none

}  // namespace troupe
