// What libFuzzer does, without its guidance, for compilers that have none:
//   x_fuzz SECONDS [FOLDER]     inputs: the files of the folder (and nothing), mutated
// The input at work stands in the file crash-input, so that it is there when the program dies.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> seeds_of(const char* folder) {
  std::vector<Bytes> out(1);
  if (folder == nullptr) return out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    out.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return out;
}

// One small change: a bit, a word of an edge value, a cut, a repetition.
void mutate(Bytes& bytes, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  const size_t at = below(bytes.size());
  switch (below(5)) {
    case 0:
      if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(bytes[at] ^ (1u << below(8)));
      return;
    case 1: {
      constexpr uint64_t kEdges[] = {
          0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, ~uint64_t{0} >> 1, ~uint64_t{0}};
      const uint64_t edge = kEdges[below(std::size(kEdges))];
      const size_t width = size_t{1} << below(4);
      for (size_t i = 0; i < width && at + i < bytes.size(); ++i) {
        bytes[at + i] = static_cast<uint8_t>(edge >> (8 * i));
      }
      return;
    }
    case 2: bytes.resize(at); return;
    case 3: {
      const size_t count = below(std::min<size_t>(bytes.size() - at + 1, 64));
      const Bytes again(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                        bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size() + 1)),
                   again.begin(), again.end());
      return;
    }
    default:
      bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<uint8_t>(random()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int seconds = argc > 1 ? std::atoi(argv[1]) : 10;
  const std::vector<Bytes> seeds = seeds_of(argc > 2 ? argv[2] : nullptr);
  std::mt19937_64 random(std::random_device{}());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  int64_t count = 0;
  for (; std::chrono::steady_clock::now() < end; ++count) {
    Bytes input = seeds[random() % seeds.size()];
    for (auto changes = random() % 6; changes > 0; --changes) mutate(input, random);
    std::ofstream("crash-input", std::ios::binary)
        .write(reinterpret_cast<const char*>(input.data()), std::ssize(input));
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::filesystem::remove("crash-input");
  std::printf("%lld inputs in %d s, no fault\n", static_cast<long long>(count), seconds);
}
