// The models that torchtitan's files choose by name and flavor, as its own code has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

struct TorchtitanFlavor {
  // Keys below `model` and their values, in an order in which they can be set.
  std::vector<std::pair<std::string, std::string>> fields;
  bool documents = false;  // attention does not cross them
  bool bias_alone =
      false;  // experts are balanced by a bias, and weights are not divided by their sum
  bool unbalanced = false;  // nothing balances the experts
};

// Of pytorch/torchtitan before 9810191bb, the last commit that reads TOML, for rows of so many
// tokens; without fields: not one of those that can be said here.
TorchtitanFlavor torchtitan_flavor(std::string_view name, std::string_view flavor,
                                   int64_t sequence);

}  // namespace troupe
