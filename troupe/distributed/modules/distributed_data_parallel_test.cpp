#include "troupe/distributed/modules/distributed_data_parallel.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "troupe/core/check.h"
#include "troupe/distributed/modules/module_cases_test.h"
#include "troupe/distributed/world/world.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using module_cases::alone;
using module_cases::expect_near;
using module_cases::inputs;
using module_cases::kRows;
using module_cases::loss_of;
using module_cases::ModelImpl;
using module_cases::Steps;
using testing::in_ranks_that_end;
using testing::in_threads;

TEST(DistributedDataParallel, TwoAndFourRanksAreOneProcessWithTheWholeBatch) {
  const Steps want = module_cases::whole_batch();
  for (const int ranks : {2, 4}) {
    for (const int64_t bucket_bytes : {int64_t{1}, int64_t{400}, int64_t{25} << 20}) {
      in_threads(ranks, [&](World& world) {
        const int64_t n = kRows / ranks;
        // Other values on other ranks: rank 0's count.
        ModelImpl model(alone(), 0.3 + static_cast<double>(world.rank()));
        const DistributedDataParallel replicas(model, world.all(), {.bucket_bytes = bucket_bytes});
        EXPECT_EQ(model.seen.item<double>(), 0.3);
        const Steps got = module_cases::train([&](const at::Tensor& x) { return model.forward(x); },
                                              model.parameters(), world.rank() * n, n);
        const auto names = model.named_parameters().keys();
        for (size_t i = 0; i < names.size(); ++i) {
          for (size_t step = 0; step < want.gradients.size(); ++step) {
            expect_near(got.gradients[step][i], want.gradients[step][i],
                        names[i] + " of step " + std::to_string(step));
          }
          expect_near(got.parameters[i], want.parameters[i], names[i]);
        }
        for (size_t step = 0; step < want.losses.size(); ++step) {
          const at::Tensor mean =
              world.all()->all_reduced(at::full({1}, got.losses[step], at::kDouble)) / ranks;
          EXPECT_NEAR(mean.item<double>(), want.losses[step], 1e-12);
        }
      });
    }
  }
}

TEST(DistributedDataParallel, ABucketIsSummedWhileTheBackwardGoesOn) {
  in_threads(2, [](World& world) {
    ModelImpl model(alone());
    // The last layer's gradients are there long before those of the first.
    DistributedDataParallel replicas(model, world.all(), {.bucket_bytes = 1});
    EXPECT_GT(replicas.num_buckets(), 4);
    int64_t begun = -1;
    model.first->weight.register_hook([&](const at::Tensor&) { begun = replicas.buckets_begun(); });
    const at::Tensor x = inputs(0, world.rank(), 2);
    loss_of(model.forward(x), x).backward();
    // In reverse order of registration the blocks come first, then the head; then a layer that is
    // not used, which ends what can begin.
    EXPECT_EQ(begun, 14);
    EXPECT_EQ(replicas.num_buckets(), 18);
  });
}

TEST(DistributedDataParallel, NoSyncAddsUpAndTheNextBackwardTakesTheMean) {
  in_threads(2, [](World& world) {
    const auto backward = [](ModelImpl& model, int64_t step, int64_t from, int64_t n) {
      const at::Tensor x = inputs(step, from, n);
      loss_of(model.forward(x), x).backward();
    };
    ModelImpl want(alone()), model(alone());
    backward(want, 0, 0, kRows);
    backward(want, 1, 0, kRows);
    DistributedDataParallel replicas(model, world.all());
    const int64_t n = kRows / 2;
    {
      const auto own = replicas.no_sync();
      backward(model, 0, world.rank() * n, n);
      EXPECT_EQ(replicas.buckets_begun(), 0);
    }
    const at::Tensor& of_rank = model.head->bias.grad();
    const at::Tensor sum = world.all()->all_reduced(of_rank);
    EXPECT_FALSE(at::allclose(sum / 2, of_rank));  // the ranks' own still
    backward(model, 1, world.rank() * n, n);
    for (const auto& item : model.named_parameters()) {
      expect_near(item.value().grad(), want.named_parameters()[item.key()].grad(), item.key());
    }
  });
}

TEST(DistributedDataParallel, AParameterThatOneRankUsesGetsItsShareAndOneThatNoneUsesNothing) {
  in_threads(2, [](World& world) {
    ModelImpl model(alone());
    const DistributedDataParallel replicas(model, world.all());
    const at::Tensor x = at::full({1, module_cases::kWidth}, 0.5, at::kDouble);
    at::Tensor y = model.head(x).sum();
    if (world.rank() == 1) y = y + model.unused(x).sum();
    y.backward();
    EXPECT_TRUE(at::allclose(model.unused->bias.grad(), at::full({2}, 0.5, at::kDouble)));
    EXPECT_TRUE(at::allclose(model.head->bias.grad(), at::full({1}, 1.0, at::kDouble)));
    EXPECT_FALSE(model.first->weight.grad().defined());
  });
}

TEST(DistributedDataParallel, MeansOfHalfPrecisionDoNotOverflow) {
  for (const int ranks : {2, 4}) {
    in_threads(ranks, [](World& world) {
      torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
      layer->to(at::kHalf);
      const DistributedDataParallel replicas(*layer, world.all());
      layer(at::full({1, 1}, 65504.0, at::kHalf)).sum().backward();
      EXPECT_EQ(layer->weight.grad().item<double>(), 65504.0);
    });
  }
}

TEST(DistributedDataParallel, ABackwardThatThrewDoesNotSpoilTheNext) {
  in_threads(2, [](World& world) {
    ModelImpl want(alone()), model(alone());
    const at::Tensor x = inputs(0);
    loss_of(want.forward(x), x).backward();
    const DistributedDataParallel replicas(model, world.all(), {.bucket_bytes = 1});
    bool throws = true;
    model.first->weight.register_hook([&](const at::Tensor&) {
      if (throws) throw std::runtime_error("the caller's own");
    });
    EXPECT_ANY_THROW(loss_of(model.forward(x), x).backward());
    throws = false;
    model.zero_grad();
    loss_of(model.forward(x), x).backward();
    expect_near(model.first->weight.grad(), want.first->weight.grad(), "first.weight");
    expect_near(model.head->weight.grad(), want.head->weight.grad(), "head.weight");
  });
}

TEST(DistributedDataParallel, AGroupOfOneChangesNothing) {
  ModelImpl want(alone()), model(alone());
  const DistributedDataParallel replicas(model, alone());
  EXPECT_EQ(replicas.num_buckets(), 0);
  const at::Tensor x = inputs(0);
  loss_of(want.forward(x), x).backward();
  loss_of(model.forward(x), x).backward();
  EXPECT_TRUE(at::equal(model.first->weight.grad(), want.first->weight.grad()));
}

TEST(DistributedDataParallel, RefusesOtherModulesOnOtherRanksASecondReplicaAndEmptyBuckets) {
  in_threads(2, [](World& world) {
    torch::nn::Linear other(3, 2 + world.rank());
    try {
      const DistributedDataParallel replicas(*other, world.all());
      ADD_FAILURE() << "ranks with other sizes were taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kRanksDiffer) << e.what();
      EXPECT_NE(std::string(e.what()).find("rank(s) 1 "), std::string::npos) << e.what();
    }
    torch::nn::Linear layer(3, 2);
    {
      const DistributedDataParallel replicas(*layer, world.all());
      EXPECT_THROW(DistributedDataParallel(*layer, world.all()), Error);
    }
    const DistributedDataParallel again(*layer, world.all());  // the first one's hooks went with it
    EXPECT_THROW(DistributedDataParallel(*layer, world.all(), {.bucket_bytes = 0}), Error);
  });
}

TEST(DistributedDataParallel, ALostRankIsTheLibrarysErrorOfBackward) {
  in_ranks_that_end({3, -SIGKILL}, [](World& world) {
    ModelImpl model(alone());
    const DistributedDataParallel replicas(model, world.all());
    world.all()->barrier();
    if (world.rank() == 1) std::raise(SIGKILL);
    const at::Tensor x = inputs(0);
    try {
      loss_of(model.forward(x), x).backward();
    } catch (const Error& e) {
      std::_Exit(e.code() == Code::kRankLost ? 3 : 2);
    }
  });
}

}  // namespace
}  // namespace troupe
