// Any bytes as a manifest, with the checksum put right so that the parser is reached, and as an
// index of a shard: an Error or a manifest that is written as it was read.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "troupe/checkpoint/files/manifest.h"
#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  std::string text = "{\"checksum\":\"0000000000000000\"," + bytes;
  text.replace(13, 16, troupe::hex(troupe::hash64(text)));
  try {
    const troupe::Manifest manifest = troupe::parse_manifest(text, "fuzz");
    const std::string again = troupe::to_json(manifest);
    if (troupe::to_json(troupe::parse_manifest(again, "again")) != again) std::abort();
  } catch (const troupe::Error&) {
    (void)0;  // refused, as most are
  }
  try {
    for (const troupe::StoredTensor& t : troupe::parse_index(bytes, "fuzz")) {
      if (t.tensor.box.numel() < 0 || t.tensor.bytes() < 0) std::abort();
    }
  } catch (const troupe::Error&) {
    return 0;
  }
  return 0;
}
