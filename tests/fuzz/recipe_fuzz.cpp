// Any bytes as a recipe: faults with their places, or a recipe that is printed and read again as
// the same one; and what is sound can be planned.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/config.h"
#include "troupe/core/yaml.h"
#include "troupe/train/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace troupe;  // NOLINT(google-build-using-namespace)
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    Recipe recipe, again;
    const Sources sources = read_config(parse_yaml(text, "fuzz.yaml"), recipe);
    std::ostringstream printed;
    print_config(printed, recipe, sources);
    try {
      read_config(parse_yaml(printed.str(), "printed.yaml"), again);
    } catch (const Error&) {
      std::abort();
    }
    if (!same(recipe, again)) std::abort();
    validate(recipe, sources);
    if (plan_of(recipe).batch < 1) std::abort();
  } catch (const Error& e) {
    if (e.exit_class() != ExitClass::kUsage) throw;
  }
  return 0;
}
