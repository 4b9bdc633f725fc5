// Any bytes as a safetensors header: an Error or a header whose tensors cover the data.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "troupe/checkpoint/files/safetensors.h"
#include "troupe/core/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The first byte stands for how much data follows the header.
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const int64_t data_bytes = size == 0 ? 0 : data[0];
  const std::string_view json = text.substr(size == 0 ? 0 : 1);
  try {
    const auto header = troupe::parse_safetensors_header(json, data_bytes, "fuzz");
    int64_t covered = 0;
    for (const troupe::SafetensorsEntry& t : header.tensors) covered += t.bytes();
    if (covered != data_bytes) std::abort();
  } catch (const troupe::Error&) {
    return 0;
  }
  return 0;
}
