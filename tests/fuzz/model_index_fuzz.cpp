// Any bytes as model.safetensors.index.json beside two files of tensors: what it maps is read from
// where it says, or refused.
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "troupe/checkpoint/files/model_index.h"
#include "troupe/core/check.h"
#include "troupe/testing/temporary_folder.h"

namespace {

constexpr const char* kFiles[] = {"a.safetensors", "b.safetensors"};

// Gone when the program ends.
struct Model {
  Model() {
    for (const char* file : kFiles) {
      const std::string header = R"({")" + std::string(1, file[0]) +
                                 R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
      const uint64_t length = header.size();
      std::ofstream out(folder / file, std::ios::binary);
      out.write(reinterpret_cast<const char*>(&length), sizeof(length));
      out << header << std::string(8, 'x');
    }
  }
  troupe::testing::TemporaryFolder folder{"/dev/shm"};
};

const std::string& folder() {
  static const Model made;
  return made.folder.path();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::ofstream(folder() + "/model.safetensors.index.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    const troupe::ModelFiles model(folder());
    for (const auto& [name, tensor] : model.tensors()) {
      std::vector<std::byte> bytes(8);
      tensor.read(0, bytes);
      if (bytes[0] != std::byte{'x'}) std::abort();
    }
  } catch (const troupe::Error& e) {
    if (e.exit_class() != troupe::ExitClass::kCheckpoint) std::abort();
  }
  return 0;
}
