// Any bytes as a config.json: an Error or a config that is written and read again as the same
// model.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "troupe/checkpoint/hf/hf_config.h"
#include "troupe/core/check.h"
#include "troupe/core/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto config =
        troupe::parse_hf_config({reinterpret_cast<const char*>(data), size}, "fuzz");
    const auto again = troupe::parse_hf_config(troupe::to_json(config), "again");
    if (!troupe::same(config.model, again.model)) std::abort();
  } catch (const troupe::Error&) {
    return 0;
  }
  return 0;
}
