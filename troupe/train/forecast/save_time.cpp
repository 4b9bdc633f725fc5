#include "troupe/train/forecast/save_time.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {

std::optional<double> write_seconds(Fs& fs, const std::string& folder, int64_t bytes) {
  constexpr int64_t kPart = int64_t{32} << 20, kBlock = int64_t{1} << 20;
  const int64_t part = std::min(bytes, kPart);
  const std::vector<std::byte> block(static_cast<size_t>(kBlock), std::byte{0x5a});
  try {
    const auto begin = std::chrono::steady_clock::now();
    const std::string probe = make_staging_directory(fs, folder + "/probe");
    try {
      NewFile file(fs, probe + "/part");
      for (int64_t left = part; left > 0; left -= kBlock) {
        file.write({block.data(), static_cast<size_t>(std::min(left, kBlock))});
      }
      file.finish();
    } catch (const Error&) {
      remove_tree(fs, probe);
      throw;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    remove_tree(fs, probe);
    return took.count() * static_cast<double>(bytes) /
           static_cast<double>(std::max<int64_t>(part, 1));
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace troupe
