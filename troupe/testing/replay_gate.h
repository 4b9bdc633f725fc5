// The replay gate: a kernel writes the same bytes each time, whatever else its GPU does.
//
//   replay([&] { combine_cuda(args, nullptr); }, /*busy=*/true);
//
// calls twice, the second time with all Buffers as they were before the first and, if `busy`, beside
// copies that another stream makes from its start to its end; it fails where a byte of any Buffer
// differs. What lies elsewhere is not looked at. testing::run and run_reference (matrix.h) do so
// with every call of a CUDA kernel; tools/check_replay.py lists the kernels that no such call has.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "troupe/testing/backend.h"
#include "troupe/testing/live_buffers.h"

namespace troupe::testing {

// Of more memory than that the first call alone is made: tests of 64-bit offsets take GiBs.
inline constexpr size_t kMostReplayed = size_t{256} << 20;

// Copies within the GPU, on a stream that waits for no other, until it goes.
class BusyStream {
 public:
#ifdef TROUPE_CUDA
  BusyStream() {
    TROUPE_CUDA_CHECK(cudaMalloc(&memory_, 2 * kBytes));
    TROUPE_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    TROUPE_CUDA_CHECK(cudaMemsetAsync(memory_, 0, 2 * kBytes, stream_));
    for (int i = 0; i < kCopies; ++i) {
      TROUPE_CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(memory_) + kBytes, memory_, kBytes,
                                        cudaMemcpyDeviceToDevice, stream_));
    }
  }
  ~BusyStream() {
    (void)cudaStreamSynchronize(stream_);
    (void)cudaStreamDestroy(stream_);
    (void)cudaFree(memory_);
  }
  BusyStream(const BusyStream&) = delete;
  BusyStream& operator=(const BusyStream&) = delete;

 private:
  static constexpr size_t kBytes = size_t{32} << 20;
  static constexpr int kCopies = 64;  // 1.4 ms at 3 TB/s
  void* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
#endif
};

inline void wait_for_device() {
#ifdef TROUPE_CUDA
  TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
#endif
}

// Which byte differs; empty: none.
inline std::string first_difference(const LiveBuffers::Contents& a,
                                    const LiveBuffers::Contents& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t k = 0; k < a[i].size(); ++k) {
      if (a[i][k] == b[i][k]) continue;
      return "byte " + std::to_string(k) + " of a buffer of " + std::to_string(a[i].size());
    }
  }
  return "";
}

// What differs in the second run; empty: nothing, or there is too much memory to compare.
template <class Call>
std::string difference_of_replay(const Call& call, bool busy) {
  LiveBuffers& buffers = LiveBuffers::of_process();
  const bool compared = buffers.bytes() <= kMostReplayed;
  const LiveBuffers::Contents before = compared ? buffers.contents() : LiveBuffers::Contents{};
  call();
  if (busy) wait_for_device();
  if (!compared) return "";
  const LiveBuffers::Contents first = buffers.contents();
  buffers.restore(before);
  {
    std::optional<BusyStream> beside;
    if (busy) beside.emplace();
    call();
    if (busy) wait_for_device();
  }
  return first_difference(first, buffers.contents());
}

template <class Call>
void replay(const Call& call, bool busy) {
  const std::string differs = difference_of_replay(call, busy);
  if (!differs.empty()) ADD_FAILURE() << "a second run wrote other bytes: " << differs;
}

}  // namespace troupe::testing
