#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/world/world.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_ranks;

// Connections and what listens for them, of this process.
int sockets() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    std::array<char, 64> target{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
    count += size > 0 &&
             std::string_view(target.data(), static_cast<size_t>(size)).starts_with("socket:");
  }
  return count;
}

// Values of which each order of addition makes another sum.
double value_of(int64_t rank) {
  constexpr std::array kValues{1e16, 1.0, -1e16, 0.3, 3e15, 1.0 / 3, -0.7};
  return kValues[static_cast<size_t>(rank)];
}

double sum_below(int64_t rank, int64_t ranks, int64_t width) {
  double out = value_of(rank);
  for (int64_t child = rank * width + 1; child <= rank * width + width; ++child) {
    if (child < ranks) out += sum_below(child, ranks, width);
  }
  return out;
}

// A mesh of seven is six connections a rank. The tree has three at most, one at a leaf, beside the
// two of the ring; and each listens.
TEST(HostCalls, FewValuesAreSummedAlongATreeOverFewConnections) {
  in_ranks(7, {.most_in_mesh = 1}, [](World& world) {
    const int before = sockets();
    const auto all = world.processors();
    for (const int64_t width : {2, 1, 16}) {
      const at::Tensor own = at::tensor({value_of(world.rank()), 1.0}, at::kDouble);
      const at::Tensor sum = all->sum_of_few(own, width);
      EXPECT_EQ(sum[0].item<double>(), sum_below(0, 7, width)) << width;  // the same bits
      EXPECT_EQ(sum[1].item<double>(), 7);
      EXPECT_EQ(own[1].item<double>(), 1) << "what is given stays";
      if (width > 2) continue;
      const bool leaf = world.rank() > 2;
      const int most = width == 1 ? 7 : leaf ? 4 : 6;
      EXPECT_LE(sockets() - before, most) << "rank " << world.rank();
      world.all_gather_texts("counted", "");  // the next width connects others
    }
    EXPECT_EQ(all->sum_of_few(at::tensor({world.rank()}, at::kLong)).item<int64_t>(), 21);
  });
}

TEST(HostCalls, AMeshOfFewRanksGivesTheSameSums) {
  in_ranks(3, [](World& world) {
    const auto all = world.processors();
    const at::Tensor own = at::tensor({value_of(world.rank())}, at::kDouble);
    EXPECT_EQ(all->sum_of_few(own).item<double>(), sum_below(0, 3, 16));
  });
}

// Rank r has r + 2 rows for the next rank, some for itself, and none for the others.
TEST(HostCalls, RowsGoBetweenThoseThatHaveSome) {
  in_ranks(5, {.most_in_mesh = 1}, [](World& world) {
    const int before = sockets();
    const int64_t me = world.rank(), ranks = world.size();
    const int64_t next = (me + 1) % ranks, last = (me + ranks - 1) % ranks;
    std::vector<int64_t> from(5), to(5);
    const auto set = [](std::vector<int64_t>& rows, int64_t rank, int64_t n) {
      rows[static_cast<size_t>(rank)] = n;
    };
    set(to, next, me + 2);
    set(to, me, 1);
    set(from, last, last + 2);
    set(from, me, 1);
    const at::Tensor in = at::empty({me + 3, 2}, at::kLong);
    const bool self_first = me < next;
    in.narrow(0, self_first ? 1 : 0, me + 2).fill_(me);
    in.narrow(0, self_first ? 0 : me + 2, 1).fill_(100 + me);
    const at::Tensor out = at::empty({last + 3, 2}, at::kLong);
    const auto all = world.processors();
    all->exchange(out, in, from, to);
    const bool self_first_here = me < last;
    EXPECT_TRUE(at::equal(out.narrow(0, self_first_here ? 1 : 0, last + 2),
                          at::full({last + 2, 2}, last, at::kLong)));
    EXPECT_TRUE(at::equal(out.narrow(0, self_first_here ? 0 : last + 2, 1),
                          at::full({1, 2}, 100 + me, at::kLong)));
    EXPECT_LE(sockets() - before, 3) << "two ranks, and where it listens";
  });
}

TEST(HostCalls, ARankAloneKeepsWhatItHas) {
  ProcessGroup alone;
  EXPECT_EQ(alone.sum_of_few(at::full({1}, 3.0)).item<double>(), 3);
  const at::Tensor out = at::empty({4});
  alone.exchange(out, at::arange(4, at::kFloat), {4}, {4});
  EXPECT_TRUE(at::equal(out, at::arange(4, at::kFloat)));
}

}  // namespace
}  // namespace troupe
