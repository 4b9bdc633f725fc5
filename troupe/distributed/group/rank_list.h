// Numbers of ranks, for messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

// In their order, "0, 2, 7"; five and more in a row as "8 to 15". Different lists, different texts.
std::string rank_list(const std::vector<int64_t>& ranks);

}  // namespace troupe
