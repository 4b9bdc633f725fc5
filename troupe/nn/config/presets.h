// Published models by name, for `model: {preset: NAME}`: the config that their makers state, down
// to the exact number of parameters. ModelConfig::presets() lists them.
//
// A balance coefficient is per layer (rule A1): a hub's pooled coefficient a is a K / layers.
#pragma once

#include <string_view>

#include "troupe/nn/config/config.h"

namespace troupe {

ModelConfig preset(std::string_view name);  // throws, with the nearest name, where there is none

}  // namespace troupe
