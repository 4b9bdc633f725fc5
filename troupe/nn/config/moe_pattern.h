// Which layers of a model are MoE layers (rule L4).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

// `pattern` is an integer N (layer i is MoE when i mod N = 0), or lists of 0 and 1, repeated and
// joined, of `layers` entries in all: "[0]*3+[1]*21". Anything else throws with the pattern.
std::vector<bool> moe_layers(const std::string& pattern, int64_t layers);
bool is_in_pattern(const std::string& pattern, int64_t layer, int64_t layers);  // one of these

}  // namespace troupe
