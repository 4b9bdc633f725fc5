// Any bytes as an MDS folder: up to the first zero byte as its index.json, what is behind it as the
// shard; and as a shard whose size and hash the index has right. Read or refused.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/data/build/convert.h"
#include "troupe/testing/temporary_folder.h"

namespace {

const std::string& folder() {
  static const troupe::testing::TemporaryFolder made("/dev/shm");
  return made.path();
}

void convert(const std::string& index, const std::string& shard) {
  std::ofstream(folder() + "/index.json", std::ios::binary) << index;
  std::ofstream(folder() + "/shard.mds", std::ios::binary) << shard;
  troupe::Fs fs;
  try {
    troupe::convert_mds({.input = folder(), .output = folder() + "/out", .replace = true}, fs);
  } catch (const troupe::Error& e) {
    if (e.exit_class() != troupe::ExitClass::kData) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(bytes.find('\0'), size);
  convert(bytes.substr(0, zero), bytes.substr(std::min(zero + 1, size)));
  const std::string hash =
      troupe::hex(troupe::xxh64(std::as_bytes(std::span(bytes.data(), bytes.size()))));
  convert(R"({"version":2,"shards":[{"format":"mds","column_names":["tokens"],)"
          R"("column_encodings":["ndarray:uint16"],"column_sizes":[null],"compression":null,)"
          R"("hashes":["xxh64"],"samples":2,"zip_data":null,"raw_data":{"basename":"shard.mds",)"
          R"("bytes":)" +
              std::to_string(size) + R"(,"hashes":{"xxh64":")" + hash + "\"}}}]}",
          bytes);
  return 0;
}
