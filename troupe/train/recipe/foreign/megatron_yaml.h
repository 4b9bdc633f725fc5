// Megatron-LM's flags as YAML, as its functional tests and the model zoo keep them:
//   MODEL_ARGS:
//     --num-layers: 61
//     --sequence-parallel: true
//     --tensor-model-parallel-size: ${TP}
#pragma once

#include <map>
#include <string>

#include "troupe/core/config/yaml.h"
#include "troupe/train/recipe/foreign/draft.h"
#include "troupe/train/recipe/foreign/shell_words.h"

namespace troupe {

// The words of a command: true is a flag alone, false none, a text several words where it has
// blanks. Variables that are not given stay as they are written. `draft` lists the other
// sections as ignored.
ShellArguments megatron_yaml_arguments(const Yaml& map,
                                       const std::map<std::string, std::string>& variables,
                                       const std::string& file, Draft& draft);

}  // namespace troupe
