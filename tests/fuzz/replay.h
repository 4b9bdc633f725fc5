// Each fuzz target on its seeds and on what damages make of them, the same ones in every run of the
// tests. TROUPE_TARGETS lists the targets of the program that includes this
// (cmake/troupe_fuzz.cmake).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/file/file.h"

// tests/fuzz/<name>_fuzz.cpp defines it, under a name of its own: cmake/troupe_fuzz.cmake.
#define TROUPE_TARGET(name) extern "C" int fuzz_##name(const uint8_t* data, size_t size);
#include TROUPE_TARGETS
#undef TROUPE_TARGET

namespace troupe::replay {

struct Target {
  const char* name;
  int (*run)(const uint8_t* data, size_t size);
};
#define TROUPE_TARGET(name) Target{#name, fuzz_##name},
inline const Target kTargets[] = {
#include TROUPE_TARGETS
};
#undef TROUPE_TARGET

inline void run(const Target& target, const std::string& bytes) {
  EXPECT_EQ(target.run(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
}

inline constexpr std::string_view kTelling("\0\xff\x7f\x80{}[]\",:09-e", 15);

// One to four damages: another byte, a flipped bit, a piece cut out, doubled or put elsewhere.
inline std::string damaged(std::string bytes, std::mt19937_64& draw) {
  const auto below = [&](size_t n) { return static_cast<size_t>(draw() % n); };
  for (size_t left = 1 + below(4); left > 0 && !bytes.empty(); --left) {
    const size_t at = below(bytes.size());
    const std::string piece = bytes.substr(at, 1 + below(16));
    switch (below(6)) {
      case 0: bytes[at] = static_cast<char>(draw()); break;
      case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
      case 2: bytes[at] = kTelling[below(kTelling.size())]; break;
      case 3: bytes.erase(at, piece.size()); break;
      case 4: bytes.insert(below(bytes.size() + 1), piece); break;
      default: bytes.resize(at); break;
    }
  }
  return bytes;
}

// The target on nothing, on each of its seeds, and on so many damages of each.
inline void replay(const Target& target, int damages) {
  const std::filesystem::path folder = std::filesystem::path(TROUPE_SEEDS) / target.name;
  std::vector<std::string> seeds;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    seeds.push_back(read_file(file.path().string()));
  }
  ASSERT_FALSE(seeds.empty()) << folder;
  std::sort(seeds.begin(), seeds.end());
  run(target, "");
  std::mt19937_64 draw(1);
  for (const std::string& seed : seeds) {
    run(target, seed);
    for (int i = 0; i < damages; ++i) run(target, damaged(seed, draw));
  }
}

}  // namespace troupe::replay
