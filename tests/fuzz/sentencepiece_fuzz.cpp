// Any bytes as a SentencePiece model: read or refused, and what was read encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/sentencepiece.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace troupe;  // NOLINT(google-build-using-namespace)
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = parse_sentencepiece(bytes, "fuzz.model");
    auto ids = tokenizer->encode("ab \xC3\xA9 a\xFF  12\n" + bytes.substr(0, 256));
    ids.push_back(static_cast<TokenId>(size));
    if (!is_utf8(tokenizer->decode(ids))) __builtin_trap();
  } catch (const Error& e) {
    if (e.exit_class() != ExitClass::kData) throw;
  }
  return 0;
}
