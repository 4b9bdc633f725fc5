// The option that lets a run go on though something changed, as a message shows it for a shell.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/text/shell_word.h"
#include "troupe/core/text/text.h"

namespace troupe {

// "--set 'checkpoint.waive_changed=[train.batch,train.length]'": the names that are waived already,
// and `more`.
inline std::string waive_option(std::vector<std::string> waived,
                                const std::vector<std::string>& more) {
  for (const std::string& name : more) {
    if (std::ranges::find(waived, name) == waived.end()) waived.push_back(name);
  }
  std::string names;
  for (const std::string& name : waived) {
    const bool plain = name.find_first_of(",[]{}'\"#:&*!|>%@`") == std::string::npos;
    names += (names.empty() ? "" : ",") + (plain ? name : to_text(name));
  }
  return "--set " + shell_word("checkpoint.waive_changed=[" + names + "]");
}

}  // namespace troupe
