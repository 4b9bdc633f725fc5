// Any bytes as a SentencePiece model: read or refused, and what was read encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/fuzz/encode_and_decode.h"
#include "troupe/data/tokenizer/sentencepiece.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace troupe;  // NOLINT(google-build-using-namespace)
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  encode_and_decode([&] { return parse_sentencepiece(bytes, "fuzz.model"); },
                    "ab \xC3\xA9 a\xFF  12\n" + bytes.substr(0, 256), size);
  return 0;
}
