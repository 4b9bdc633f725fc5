// What tests/safetensors_test.py runs: reads a safetensors file with our reader and writes it anew
// with our writer.
//   safetensors_io IN OUT
#include <cstdio>
#include <vector>

#include "troupe/checkpoint/files/publish_safetensors_test.h"
#include "troupe/core/check.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const troupe::SafetensorsFile in(argv[1]);
    troupe::Fs fs;
    const auto layout = troupe::layout_safetensors(in.tensors(), in.metadata());
    troupe::publish_safetensors(
        fs, argv[2], layout,
        [&](const troupe::SafetensorsEntry& tensor, const troupe::WriteBytes& write) {
          const troupe::SafetensorsEntry& there = *in.find(tensor.name);
          std::vector<std::byte> bytes(static_cast<size_t>(there.bytes()));
          in.read(there, 0, bytes);
          write(bytes);
        });
  } catch (const troupe::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return e.code() == troupe::Code::kBadModelFile ? 4 : 1;
  }
  return 0;
}
