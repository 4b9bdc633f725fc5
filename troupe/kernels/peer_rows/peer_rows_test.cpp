#include "troupe/kernels/peer_rows/peer_rows.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;

struct Shape {
  int64_t peers, each, repeats, row_bytes, choices;  // choices 0: all rows are wanted
};

struct Problem {
  static constexpr int64_t kGuard = 16;
  static constexpr uint8_t kUntouched = 0xa5;

  explicit Problem(const Shape& s)
      : shape(s),
        rows(s.peers * s.each * s.repeats),
        from(s.peers * s.each * s.row_bytes),
        out(rows * s.row_bytes + kGuard),
        wanted(rows * s.choices) {
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(7 * i + i / 251);
    std::memset(out.data(), kUntouched, out.size());
    // One row in three is wanted by nobody, one by its last choice, one by its first.
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < s.choices; ++c) {
        const bool has = (r % 3 == 1 && c == s.choices - 1) || (r % 3 == 2 && c == 0);
        wanted[r * s.choices + c] = has ? static_cast<int32_t>(r % 5) : -1;
      }
    }
  }
  PeerRows args(int fill = 0) {
    PeerRows a{.peers = shape.peers,
               .each = shape.each,
               .repeats = shape.repeats,
               .row_bytes = shape.row_bytes,
               .choices = shape.choices,
               .wanted = shape.choices > 0 ? wanted.data() : nullptr,
               .fill = fill,
               .out = out.data()};
    // The last peer's rows are first: nothing may depend on where memory is.
    for (int64_t w = 0; w < shape.peers; ++w) {
      a.from[static_cast<size_t>(w)] =
          from.data() + (shape.peers - 1 - w) * shape.each * shape.row_bytes;
    }
    return a;
  }
  Shape shape;
  int64_t rows;
  Buffer<uint8_t> from, out;
  Buffer<int32_t> wanted;
};

class PeerRowsTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
};

const std::vector<Shape> kShapes{{1, 5, 1, 16, 0},  {2, 3, 1, 4096, 2}, {4, 7, 1, 36, 3},
                                 {3, 5, 4, 32, 1},  {2, 11, 2, 7, 1},   {5, 0, 1, 16, 2},
                                 {2, 4, 1, 0, 1},   {64, 2, 1, 48, 8},  {1, 1, 1, 8208, 1},
                                 {2, 131, 1, 20, 4}};

TEST_P(PeerRowsTest, AgreesWithTheReferenceInEveryByteAndWritesNothingFurther) {
  for (const Shape& s : kShapes) {
    for (const int fill : {-1, 0, 255}) {
      Problem got(s), want(s);
      testing::run(GetParam(), got.args(fill), peer_rows_cpu, TROUPE_CUDA_PATH(peer_rows_cuda));
      peer_rows_ref(want.args(fill));
      EXPECT_EQ(std::memcmp(got.out.data(), want.out.data(), want.out.size()), 0)
          << s.peers << " peers, " << s.each << " rows of " << s.row_bytes << ", fill " << fill;
      EXPECT_EQ(want.out[want.out.size() - 1], Problem::kUntouched);
    }
  }
}

// By the formula, without the reference.
TEST_P(PeerRowsTest, EachWantedRowIsItsPeersAndTheOthersAreFilledOrLeft) {
  const Shape s{3, 4, 2, 12, 2};
  for (const int fill : {-1, 9}) {
    Problem p(s);
    testing::run(GetParam(), p.args(fill), peer_rows_cpu, TROUPE_CUDA_PATH(peer_rows_cuda));
    for (int64_t r = 0; r < p.rows; ++r) {
      const int64_t w = r / 8, i = r % 8 / 2;
      for (int64_t b = 0; b < s.row_bytes; ++b) {
        const uint8_t source = p.from[((2 - w) * 4 + i) * 12 + b];
        const uint8_t other = fill < 0 ? Problem::kUntouched : static_cast<uint8_t>(fill);
        ASSERT_EQ(int{p.out[r * 12 + b]}, int{r % 3 == 0 ? other : source}) << r << ", " << b;
      }
    }
  }
}

// A row that nobody wants is not read: to read it would be a fault here.
TEST(PeerRows, RowsThatAreNotWantedAreNotRead) {
  Problem p({2, 3, 1, 16, 1});
  void* const closed = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(closed, MAP_FAILED);
  PeerRows a = p.args(0);
  for (int64_t r = 3; r < 6; ++r) p.wanted[r] = -1;
  a.from[1] = static_cast<const uint8_t*>(closed);
  peer_rows_cpu(a, serial);
  ::munmap(closed, 4096);
  for (int64_t b = 3 * 16; b < 6 * 16; ++b) EXPECT_EQ(int{p.out[b]}, 0);
}

INSTANTIATE_TEST_SUITE_P(All, PeerRowsTest,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         [](const auto& c) { return std::string(testing::name(c.param)); });

TEST(PeerRows, RefusesWhatIsMissingOrOutOfRange) {
  Problem p({2, 3, 1, 16, 1});
  PeerRows a = p.args();
  a.from[1] = nullptr;
  EXPECT_THROW(peer_rows_cpu(a, serial), Error);
  a = p.args();
  a.out = nullptr;
  EXPECT_THROW(peer_rows_cpu(a, serial), Error);
  a = p.args(256);
  EXPECT_THROW(peer_rows_cpu(a, serial), Error);
  a = p.args();
  a.choices = 0;
  EXPECT_THROW(peer_rows_cpu(a, serial), Error);
  a = p.args();
  a.peers = kMostPeers + 1;
  EXPECT_THROW(peer_rows_cpu(a, serial), Error);
}

}  // namespace
}  // namespace troupe
