// Any bytes as a tiktoken file of ranks: read or refused, and what was read encodes and decodes.
#include <cstdint>
#include <string>

#include "tests/fuzz/encode_and_decode.h"
#include "troupe/data/tokenizer/tiktoken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace troupe;  // NOLINT(google-build-using-namespace)
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  looks_like_tiktoken(std::string_view(bytes).substr(0, 256));
  encode_and_decode(
      [&] {
        return parse_tiktoken(bytes, "fuzz.tiktoken", {R"(\S+|\s+)", {}, "", ""});
      },
      "the caf\xC3\xA9 <s> a\xFF  12\n" + bytes.substr(0, 256), size);
  return 0;
}
