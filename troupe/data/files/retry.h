// Reading where the disk may hiccup: a failed read is tried again before it is a fault.
#pragma once

#include <array>
#include <chrono>
#include <thread>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"

namespace troupe {

using Pauses = std::array<std::chrono::milliseconds, 2>;
inline constexpr Pauses kReadPauses{std::chrono::milliseconds(100),
                                    std::chrono::milliseconds(1000)};

// Runs `read`; when it throws an Error, `still_good` (which throws if another try is pointless), a
// pause, and `read` again: three tries in all, then what the last one threw.
template <class Read, class StillGood>
void retry(Read&& read, StillGood&& still_good, const Pauses& pauses = kReadPauses) {
  for (const auto pause : pauses) {
    try {
      return read();
    } catch (const Error&) {
      still_good();
      std::this_thread::sleep_for(pause);
    }
  }
  read();
}

// file.read_at with three tries. A file that changed is E3104, at once.
inline void read_steadily(const InputFile& file, int64_t offset, std::span<std::byte> out) {
  retry([&] { file.read_at(offset, out); }, [&] { file.require_unchanged(Code::kDataChanged); });
}

// The same into an array: out = the values that begin at the byte `offset`, in the file's order
// (little-endian, as all our machines are).
template <class T>
void read_array(const InputFile& file, int64_t offset, std::span<T> out) {
  read_steadily(file, offset, std::as_writable_bytes(out));
}

}  // namespace troupe
