#include "troupe/distributed/group/staged_backend.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/world/world.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using Tensors = std::vector<at::Tensor>;

// A second world of the same processes, whose tensors of the CPU go through copies too.
World staged_world(const World& world) {
  LauncherEnvironment place = world.place();
  place.job = "staged";
  return {place, c10::kCPU, {.hang_timeout = std::chrono::seconds(20), .staged = true}};
}

// A rank's tensor of the type, [2, 3], that differs from the other's.
at::Tensor tensor_of(int64_t rank, at::ScalarType type) {
  return (at::arange(6, at::kFloat) + static_cast<double>(10 * rank + 1)).view({2, 3}).to(type);
}

// What each collective gives a rank of two.
Tensors results(ProcessGroup& g, at::ScalarType type) {
  const int64_t r = g.rank();
  const at::Tensor own = tensor_of(r, type);
  const auto like = [&](at::IntArrayRef sizes) { return at::full(sizes, -1, own.options()); };
  const at::Tensor one = own.clone(), two = own.clone(), shard = like({3}), whole = like({12});
  g.all_reduce({one}).wait();
  g.all_reduce({two, one}).wait();
  g.reduce_scatter({shard}, {own.view({-1})}).wait();
  const at::Tensor place = whole.narrow(0, 6 * r, 6);  // its part of the whole
  place.copy_(own.view({-1}));
  g.all_gather({whole}, {place}).wait();
  // Rank 0 keeps a row and sends one; rank 1 sends both to rank 0.
  const at::Tensor rows = like({r == 0 ? 3 : 1, 3});
  g.all_to_all(rows, own, r == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1, 0},
               r == 0 ? std::vector<int64_t>{1, 1} : std::vector<int64_t>{2, 0})
      .wait();
  const at::Tensor given = own.clone();
  g.broadcast(given, 1).wait();
  const at::Tensor first = like({2, 3}), second = like({3});
  if (r == 0) {
    Pending a = g.send(own), b = g.send(own[1].contiguous());
    a.wait(), b.wait();
  } else {
    Pending a = g.recv(first), b = g.recv(second);
    b.wait(), a.wait();
  }
  g.barrier();
  EXPECT_TRUE(at::equal(own, tensor_of(r, type)));  // what is sent stays as it is
  return {one, two, shard, whole, rows, given, first, second};
}

TEST(StagedBackend, EachCollectiveIsThatOfGloo) {
  testing::in_ranks(2, [](World& world) {
    World staged = staged_world(world);
    EXPECT_EQ(staged.all()->description(), "ranks 0, 1 over gloo through host memory");
    EXPECT_EQ(staged.processors()->description(), "ranks 0, 1 over gloo");
    for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const Tensors through = results(*staged.all(), type), plain = results(*world.all(), type);
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(at::equal(through[i], plain[i])) << type << ", result " << i;
      }
    }
    const at::Tensor rest = at::empty({0, 4});
    staged.all()->all_to_all(rest, rest, {0, 0}, {0, 0}).wait();
    staged.all_gather_texts("end", "");
  });
}

// As of NCCL: autograd, which may have kept the tensor, sees no in-place change of it; and it is
// written to by wait() alone, where it is on the stream of whoever waits.
TEST(StagedBackend, ATensorIsWrittenToByTheWaitAndHasItsVersion) {
  testing::in_ranks(2, [](World& world) {
    World staged = staged_world(world);
    const at::Tensor x = at::full({4}, static_cast<double>(world.rank() + 1));
    const at::Tensor before = x.clone();
    const auto version = x._version();
    Pending sum = staged.all()->all_reduce({x});
    staged.all()->barrier();  // it has come to the host
    EXPECT_TRUE(at::equal(x, before));
    sum.wait();
    EXPECT_TRUE(at::equal(x, at::full({4}, 3.0)));
    EXPECT_EQ(x._version(), version);
    staged.all_gather_texts("end", "");
  });
}

}  // namespace
}  // namespace troupe
