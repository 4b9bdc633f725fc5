#include "troupe/train/params/param_store.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_ranks;

enum Way { kDdp, kZero1, kFull, kHybrid };
constexpr const char* kNames[] = {"ddp", "zero1", "full", "hybrid"};

// A dense tensor and two of four experts on each rank: of pairs of ranks, so that in a world of two
// nobody else has them, and in one of four one other rank does.
struct Problem {
  Problem(World& world, Way way, at::ScalarType type = at::kFloat, bool exact = false)
      : rank(world.rank()) {
    const int64_t W = world.size(), half = W == 4 ? rank / 2 : 0;
    const auto all = world.all(), one = std::make_shared<ProcessGroup>(rank);
    const auto within = W == 4 ? world.group({2 * half, 2 * half + 1}) : all;
    const auto across = W == 4 ? world.group({rank % 2, rank % 2 + 2}) : one;
    Sharing sharing;
    ShardMesh &of_dense = sharing.meshes.dense[1], &of_experts = sharing.meshes.experts[1];
    sharing.alone = false;
    sharing.exact = exact;
    sharing.full = way == kFull || way == kHybrid;
    switch (way) {
      case kDdp:
        of_dense = {one, all, "dense"};
        of_experts = {one, across, "experts"};
        break;
      case kHybrid:
        of_dense = {within, across, "dense"};
        of_experts = {one, across, "experts"};
        break;
      default: of_dense = {all, one, "dense"}; of_experts = {across, one, "experts"};
    }
    const int64_t first = rank % 2 * 2;
    dense = Param::of({30, 10}, {.kind = Init::kNormal, .std = 1});
    experts = Param::of_experts({4, 5, 7}, {.kind = Init::kNormal, .std = 1},
                                HeldExperts({first, first + 1}));
    store = std::make_unique<ParamStore>(
        std::vector<NamedParam>{{.name = "dense", .param = &dense, .unit = 0},
                                {.name = "experts", .param = &experts, .unit = 1}},
        at::TensorOptions(type), [](const NamedParam&) { return BucketKey{}; }, sharing);
    store->initialize_all(3);
  }
  // Whole numbers, so that sums are exact.
  at::Tensor grad(const Param& p, double of_rank) const {
    return (at::arange(p.numel(), at::kFloat).remainder(17) + of_rank).view(p.shown);
  }
  // The owned part of a gradient of the dense tensor.
  at::Tensor owned(const at::Tensor& whole) const {
    const OwnedRange range = store->owned(0);
    return whole.reshape({-1}).narrow(0, range.from, range.size);
  }
  int64_t rank;
  Param dense, experts;
  std::unique_ptr<ParamStore> store;
};

TEST(ParamStore, WhatNoOtherRankHasIsSummedByNobody) {
  for (const Way way : {kDdp, kZero1, kFull}) {
    in_ranks(2, [way](World& world) {
      Problem p(world, way);
      const at::Tensor own = p.grad(p.experts, static_cast<double>(10 * p.rank));
      p.store->gradients().begin_step();
      p.store->gradients().add(0, p.grad(p.dense, static_cast<double>(p.rank)));
      p.store->gradients().add(1, own);
      for (const int64_t bucket : {1, 0}) p.store->gradients().reduce({bucket}, /*last=*/true);
      p.store->gradients().end_step();
      EXPECT_EQ(p.store->gradients().of(1).data_ptr(), own.data_ptr())
          << kNames[way];  // no copy either
      EXPECT_FALSE(p.store->buckets()[1].grad.defined());
      EXPECT_TRUE(at::equal(p.store->gradients().of(0), p.owned(2 * p.grad(p.dense, 0.5))))
          << kNames[way];
    });
  }
}

TEST(ParamStore, MicrobatchesAddUpToTheSumOfAllRanks) {
  for (const Way way : {kDdp, kZero1, kFull, kHybrid}) {
    in_ranks(4, [way](World& world) {
      Problem p(world, way);
      p.store->gradients().begin_step();
      for (const int64_t m : {0, 1, 2}) {
        p.store->gradients().add(0, p.grad(p.dense, static_cast<double>(p.rank + 10 * m)));
        p.store->gradients().add(1, p.grad(p.experts, static_cast<double>(p.rank + 10 * m)));
        if (m > 0) {  // the first two go together
          for (const int64_t bucket : {1, 0}) p.store->gradients().reduce({bucket}, m == 2);
        }
      }
      p.store->gradients().end_step();
      // 3 microbatches of 4 ranks; 0 + 1 + 2 + 3 of each, and 4 (0 + 10 + 20).
      const at::Tensor all = 12 * p.grad(p.dense, 0) + 3 * 6 + 4 * 30;
      EXPECT_TRUE(at::equal(p.store->gradients().of(0), p.owned(all))) << kNames[way];
      // Ranks r and r + 2 have the same experts.
      const auto pair = static_cast<double>(p.rank % 2 + p.rank % 2 + 2);
      const at::Tensor both = (6 * p.grad(p.experts, 0) + 3 * pair + 2 * 30).reshape({-1});
      const OwnedRange range = p.store->owned(1);
      EXPECT_TRUE(at::equal(p.store->gradients().of(1), both.narrow(0, range.from, range.size)))
          << kNames[way];
    });
  }
}

// What f32 rounds away, in pieces that each rank has otherwise: the sum of all is exact.
TEST(ParamStore, ExactSumsHaveNoOrder) {
  for (const Way way : {kDdp, kZero1, kFull, kHybrid}) {
    in_ranks(4, [way](World& world) {
      Problem p(world, way, at::kFloat, /*exact=*/true);
      StepGradients& gradients = p.store->gradients();
      gradients.begin_step();
      const at::Tensor small = p.grad(p.dense, 1);
      for (const double large : {1e5, 1e-8, -1e5}) {
        gradients.add(0, small * (large == 1e-8 ? 1e-8 : 0) + (large == 1e-8 ? 0 : large));
        gradients.add(1, at::full_like(p.grad(p.experts, 0), p.rank < 2 ? large : 1e-8));
        for (const int64_t bucket : {1, 0}) gradients.reduce({bucket}, large < 0);
      }
      EXPECT_TRUE(gradients.all_fit());
      gradients.end_step();
      const at::Tensor sum = (4 * (small * 1e-8).to(at::kDouble)).to(at::kFloat);
      EXPECT_TRUE(at::allclose(gradients.of(0), p.owned(sum), 1e-6, 0)) << kNames[way];
      EXPECT_TRUE(at::allclose(gradients.of(1), at::full_like(gradients.of(1), 4e-8), 1e-6, 0));
    });
  }
}

TEST(ParamStore, AnExactSumSaysWhatDoesNotFit) {
  in_ranks(2, [](World& world) {
    Problem p(world, kDdp, at::kFloat, /*exact=*/true);
    StepGradients& gradients = p.store->gradients();
    gradients.begin_step();
    gradients.add(1, at::full_like(p.grad(p.experts, 0), 0x1p20));
    for (const int64_t bucket : {1, 0}) gradients.reduce({bucket}, /*last=*/true);
    gradients.end_step();
    EXPECT_FALSE(gradients.all_fit());
    EXPECT_TRUE(gradients.of(1).isnan().all().item<bool>());
    gradients.begin_step();
    EXPECT_TRUE(gradients.all_fit());
  });
}

TEST(ParamStore, TheNormCountsEachElementOnOneRankAlone) {
  for (const Way way : {kDdp, kZero1, kFull, kHybrid}) {
    for (const int ranks : {2, 4}) {
      in_ranks(ranks, [way, ranks](World& world) {
        Problem p(world, way);
        p.store->gradients().begin_step();
        p.store->gradients().add(0, at::full(p.dense.shown, 1.0));
        p.store->gradients().add(1, at::full(p.experts.shown, 1.0));
        for (const int64_t bucket : {1, 0}) p.store->gradients().reduce({bucket}, true);
        p.store->gradients().end_step();
        double own = 0;
        for (const at::Tensor& g : p.store->gradients().counted()) own += g.sum().item<double>();
        const double all = world.all()->all_reduced(at::full({1}, own)).item<double>();
        // The dense tensor's ones are summed over all ranks, those of experts over half of them.
        EXPECT_EQ(all, ranks * 300.0 + ranks / 2 * 140.0) << kNames[way];
      });
    }
  }
}

TEST(ParamStore, AParameterWithoutAGradientHasZeros) {
  for (const Way way : {kDdp, kZero1, kFull}) {
    in_ranks(2, [way](World& world) {
      Problem p(world, way);
      p.store->gradients().begin_step();
      p.store->gradients().reduce({0}, true);
      p.store->gradients().end_step();
      EXPECT_EQ(p.store->gradients().of(0).numel(), p.store->owned(0).size);
      EXPECT_EQ(p.store->gradients().of(1).numel(), p.store->owned(1).size);
      for (const int64_t slot : {0, 1})
        EXPECT_EQ(p.store->gradients().of(slot).abs().sum().item<double>(), 0);
    });
  }
}

// What `f` throws, or nothing.
template <class F>
std::string broken_by(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.code() == Code::kBrokenContract ? error.what() : "another code";
  }
  return "";
}

bool names_gradient(const std::string& fault, const std::string& parameter,
                    const std::string& what) {
  return fault.find("the gradient of " + parameter + ' ') != std::string::npos &&
         fault.find(what) != std::string::npos;
}

// Every rank leaves the same reduction out, so that none waits for another. In a world of four both
// parameters are shared, in each way.
TEST(StepGradients, D3_APlantedMissingReductionIsNamed) {
  for (const Way way : {kDdp, kZero1, kFull, kHybrid}) {
    in_ranks(4, [way](World& world) {
      Problem p(world, way);
      auto& gradients = p.store->gradients();
      const auto begin = [&] {
        gradients.begin_step();
        gradients.add(0, p.grad(p.dense, 1));
        gradients.add(1, p.grad(p.experts, 1));
      };
      begin();
      gradients.reduce({0}, true);
      std::string fault = broken_by([&] { gradients.end_step(); });
      EXPECT_TRUE(names_gradient(fault, "experts", "no reduction took it"))
          << kNames[way] << ' ' << fault;

      begin();  // of the first microbatch alone
      gradients.reduce({1, 0}, false);
      gradients.add(0, p.grad(p.dense, 2));
      gradients.reduce({1}, true);
      fault = broken_by([&] { gradients.end_step(); });
      EXPECT_TRUE(names_gradient(fault, "dense", "no reduction took it"))
          << kNames[way] << ' ' << fault;

      begin();  // never the last
      gradients.reduce({1, 0}, false);
      fault = broken_by([&] { gradients.end_step(); });
      EXPECT_TRUE(names_gradient(fault, "dense", "is a share")) << kNames[way] << ' ' << fault;

      gradients.begin_step();  // a parameter that got none is summed all the same: others have some
      gradients.reduce({1}, true);
      fault = broken_by([&] { gradients.end_step(); });
      EXPECT_TRUE(names_gradient(fault, "dense", "was never reduced"))
          << kNames[way] << ' ' << fault;

      begin();
      gradients.reduce({1, 0}, true);
      fault = broken_by([&] { (void)gradients.of(0); });
      EXPECT_TRUE(names_gradient(fault, "dense", "before it is whole"))
          << kNames[way] << ' ' << fault;
      fault = broken_by([&] { gradients.add(0, p.grad(p.dense, 2)); });
      EXPECT_TRUE(names_gradient(fault, "dense", "would lose it")) << kNames[way] << ' ' << fault;
      fault = broken_by([&] { gradients.reduce({0}, true); });
      EXPECT_TRUE(names_gradient(fault, "dense", "is reduced again"))
          << kNames[way] << ' ' << fault;

      EXPECT_EQ(broken_by([&] { gradients.end_step(); }), "") << kNames[way];
      EXPECT_TRUE(at::equal(gradients.of(0), p.owned(4 * p.grad(p.dense, 1)))) << kNames[way];
    });
  }
}

TEST(ParamStore, ValuesOfFullShardingAreThereBetweenGatherAndDrop) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    in_ranks(2, [type](World& world) {
      Problem whole(world, kDdp, type), p(world, kFull, type);
      const auto bytes = [&] { return p.dense.value.storage().nbytes(); };
      EXPECT_EQ(bytes(), 0U);
      p.store->gather({0});
      p.store->gather({0});  // two units that read it
      p.store->need({0});
      EXPECT_TRUE(at::equal(p.dense.value, whole.dense.value));
      p.store->drop({0});
      EXPECT_GT(bytes(), 0U);
      p.store->drop({0});
      EXPECT_EQ(bytes(), 0U);
      EXPECT_THROW(p.store->drop({0}), Error);
      EXPECT_TRUE(at::equal(p.experts.value, whole.experts.value));  // nobody else's: always there
    });
  }
}

}  // namespace
}  // namespace troupe
