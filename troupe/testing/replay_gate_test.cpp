#include "troupe/testing/replay_gate.h"

#include <gtest/gtest.h>

namespace troupe::testing {
namespace {

TEST(Replay, ACallThatWritesTheSameBytesPasses) {
  Buffer<int> in(4), out(4);
  for (int i = 0; i < 4; ++i) in[i] = i, out[i] = 10 * i;
  // In place as well: the second call begins with what the first one began with.
  EXPECT_EQ(difference_of_replay(
                [&] {
                  for (int i = 0; i < 4; ++i) out[i] += in[i];
                },
                false),
            "");
  EXPECT_EQ(out[3], 33);
}

TEST(Replay, ACallThatWritesOtherBytesIsFound) {
  Buffer<int> other(2), out(4);
  for (int i = 0; i < 4; ++i) out[i] = 0;
  other[0] = other[1] = 5;
  int calls = 0;
  EXPECT_EQ(difference_of_replay([&] { out[2] = ++calls; }, false), "byte 8 of a buffer of 16");
  EXPECT_EQ(other[0], 5);
}

TEST(Replay, ABufferThatIsGoneIsNotLookedAt) {
  const size_t before = LiveBuffers::of_process().bytes();
  {
    Buffer<char> bytes(100);
    Buffer<char> moved = std::move(bytes);
    EXPECT_EQ(LiveBuffers::of_process().bytes(), before + 100);
  }
  EXPECT_EQ(LiveBuffers::of_process().bytes(), before);
}

TEST(Replay, OnAGpuBesideABusyStreamCuda) {
  if (!available(Backend::kCuda)) GTEST_SKIP() << "no GPU here";
#ifdef TROUPE_CUDA
  Buffer<char> bytes(1 << 20);
  int calls = 0;
  const auto same = [&] { TROUPE_CUDA_CHECK(cudaMemsetAsync(bytes.data(), 7, bytes.size())); };
  const auto other = [&] { TROUPE_CUDA_CHECK(cudaMemsetAsync(bytes.data(), ++calls, 9)); };
  EXPECT_EQ(difference_of_replay(same, true), "");
  EXPECT_EQ(difference_of_replay(other, true), "byte 0 of a buffer of 1048576");
#endif
}

}  // namespace
}  // namespace troupe::testing
