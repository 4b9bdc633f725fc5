#include "troupe/data/tokens/batch_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "troupe/core/check.h"
#include "troupe/testing/files.h"

namespace troupe {
namespace {

using testing::refusal_code;
using namespace std::chrono_literals;

TEST(BatchReader, BatchesComeInOrder) {
  BatchReader reader([](int64_t n) { return TokenBatch{.first_sample = n}; }, 5, 3);
  for (int64_t n = 5; n < 200; ++n) EXPECT_EQ(reader.next().first_sample, n);
}

TEST(BatchReader, ReadsAheadAndNoFurther) {
  std::atomic<int64_t> made = 0;
  BatchReader reader([&](int64_t n) { return ++made, TokenBatch{.first_sample = n}; }, 0, 3);
  while (made < 3) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(made, 3);
  reader.next();
  while (made < 4) std::this_thread::sleep_for(1ms);
}

TEST(BatchReader, AFaultComesInItsPlaceAndStays) {
  BatchReader reader(
      [](int64_t n) {
        if (n == 2) fail(Code::kDataChanged, "x.bin", "was cut");
        return TokenBatch{.first_sample = n};
      },
      0, 4);
  reader.next();
  reader.next();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(refusal_code(Code::kDataChanged, [&] { reader.next(); }), "x.bin: E3104 was cut");
  }
}

TEST(BatchReader, F70_WaitingIsCounted) {
  BatchReader slow(
      [](int64_t n) {
        std::this_thread::sleep_for(30ms);
        return TokenBatch{.first_sample = n};
      },
      0, 1);
  for (int i = 0; i < 3; ++i) slow.next();
  EXPECT_GT(slow.wait_seconds(), 0.06);
}

TEST(BatchReader, StopsInTheMiddle) {
  for (int i = 0; i < 20; ++i) {
    BatchReader reader([](int64_t n) { return TokenBatch{.first_sample = n}; }, 0, 2);
    if (i % 2 == 0) reader.next();
  }
}

}  // namespace
}  // namespace troupe
