// Any bytes as a config.json: an Error, or a config that is written and, read again, written the
// same; and what is read of our own writing is the same model. (A pattern of layers may be spelt
// otherwise the first time.) The same with one of its numbers made large.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/fuzz/large_number.h"
#include "troupe/checkpoint/hf/hf_config.h"
#include "troupe/core/check.h"
#include "troupe/core/config/config.h"

namespace {

void look_at(const std::string& text) {
  try {
    const auto config = troupe::parse_hf_config(text, "fuzz");
    const std::string written = troupe::to_json(config);
    const auto again = troupe::parse_hf_config(written, "again");
    const auto third = troupe::parse_hf_config(troupe::to_json(again), "third");
    if (troupe::to_json(again) != written) std::abort();
    if (!troupe::same(again.model, third.model)) std::abort();
  } catch (const troupe::Error&) {
    return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  look_at(text);
  look_at(with_large_number(text));
  return 0;
}
