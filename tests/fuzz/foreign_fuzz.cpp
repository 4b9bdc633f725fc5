// Any bytes as another trainer's script, list of arguments, YAML or TOML: refused with a class of
// usage, or a recipe that reads as YAML and whose lines are lines to any reader, whichever kind it is
// said to be.
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/config/yaml.h"
#include "troupe/core/text/one_line.h"
#include "troupe/train/recipe/foreign/convert_recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using troupe::ForeignKind;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const ForeignKind kind : {ForeignKind::kAuto, ForeignKind::kMegatron, ForeignKind::kFoundry,
                                 ForeignKind::kTorchtitan, ForeignKind::kMegaBlocks}) {
    try {
      const troupe::Conversion done = troupe::convert_recipe(text, "run.sh", kind, {{"1", "a b"}});
      const std::string recipe = troupe::recipe_file(done);
      troupe::parse_yaml(recipe, "converted.yaml");
      std::istringstream lines(recipe);
      for (std::string line; std::getline(lines, line);) {
        if (troupe::one_line(line) != line) std::abort();
      }
    } catch (const troupe::Error& e) {
      if (e.exit_class() != troupe::ExitClass::kUsage) std::abort();
    }
  }
  return 0;
}
