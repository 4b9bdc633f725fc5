// Any bytes as GPT-2's two files, up to the first zero byte vocab.json and what is behind it
// merges.txt: read or refused, and what was read encodes and decodes.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

#include "tests/fuzz/encode_and_decode.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/testing/temporary_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace troupe;  // NOLINT(google-build-using-namespace)
  static const testing::TemporaryFolder folder("/dev/shm");
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(bytes.find('\0'), size);
  std::ofstream(folder.path() + "/vocab.json", std::ios::binary) << bytes.substr(0, zero);
  std::ofstream(folder.path() + "/merges.txt", std::ios::binary)
      << bytes.substr(std::min(zero + 1, size));
  encode_and_decode([&] { return open_tokenizer(folder.path()); },
                    "the caf\xC3\xA9 <s> a\xFF  12\n" + bytes.substr(0, 256), size);
  return 0;
}
