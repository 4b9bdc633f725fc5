// Any bytes as a recipe: faults with their places, or a recipe that is printed and read again as
// the same one; and what is sound can be planned. The same with one of its numbers made large.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "tests/fuzz/large_number.h"
#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/yaml.h"
#include "troupe/nn/config/costs.h"
#include "troupe/train/recipe/recipe.h"

namespace {

void look_at(const std::string& text) {
  using namespace troupe;  // NOLINT(google-build-using-namespace)
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
    const RunPlan plan = plan_of(recipe);
    if (plan.batch < 1 || plan.run.steps < 1 || plan.run.tokens < 1) std::abort();
    if (costs_of(recipe.model).params() < 1) std::abort();
  } catch (const Error& e) {
    if (e.exit_class() != ExitClass::kUsage) throw;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  look_at(text);
  look_at(with_large_number(text));
  return 0;
}
