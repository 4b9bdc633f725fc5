// Any bytes as the PREFIX.json beside tokens, which says how they were made: read or refused.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/data/text/build_info.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    troupe::BuildInfo info;
    troupe::read_config(troupe::parse_json(text, "fuzz.json"), info);
  } catch (const troupe::Error& e) {
    if (e.exit_class() == troupe::ExitClass::kBug) std::abort();
  }
  return 0;
}
