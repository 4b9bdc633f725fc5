// MosaicML's mcli: a YAML of a cluster's run, whose command launches LLM-Foundry's trainer.
//   command: composer train/train.py train/yamls/pretrain/mpt-1b.yaml max_duration=100ba
//   command: composer train/train.py /mnt/config/parameters.yaml        its own `parameters`
#pragma once

#include <string>

#include "troupe/core/config/yaml.h"
#include "troupe/train/recipe/foreign/draft.h"

namespace troupe {

// LLM-Foundry's settings that the command launches, its own settings over them: what the YAML is
// that names them, where that is no mcli. The launched file is looked for beside `file` and in the
// folders above it; E2005 where it is not at hand, or the command trains nothing.
Yaml launched_settings(Yaml map, const std::string& file, Draft& draft);

}  // namespace troupe
