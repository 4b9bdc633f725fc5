// Any bytes as a tiktoken file of ranks: read or refused, and what was read encodes and decodes.
#include <cstdint>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/tiktoken.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace troupe;  // NOLINT(google-build-using-namespace)
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  looks_like_tiktoken(std::string_view(bytes).substr(0, 256));
  try {
    const auto tokenizer = parse_tiktoken(bytes, "fuzz.tiktoken", {R"(\S+|\s+)", {}, "", ""});
    auto ids = tokenizer->encode("the caf\xC3\xA9 <s> a\xFF  12\n" + bytes.substr(0, 256));
    ids.push_back(static_cast<TokenId>(size));
    if (!is_utf8(tokenizer->decode(ids))) __builtin_trap();
  } catch (const Error& e) {
    if (e.exit_class() != ExitClass::kData) throw;
  }
  return 0;
}
