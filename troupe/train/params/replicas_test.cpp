#include "troupe/train/params/replicas.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/torch/ranks.h"
#include "troupe/train/layout/parallel_setup.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/recipe/recipe_of_test.h"

namespace troupe {
namespace {

using testing::in_ranks;

constexpr char kSmall[] =
    "model: {layers: 1, width: 32, heads: 4, vocab: 256, max_positions: 64, ffn: 64}\n"
    "data: {sequence: 32}\n"
    "parallel: {shard: none}\n"
    "run: {device: cpu}\n";

// A weight that is trained, in halves, a frozen one, and a router's bias.
struct Replica {
  Param w = Param::of({5, 7}, {.kind = Init::kNormal, .std = 1});
  Param frozen = Param::of({3, 5}, {.kind = Init::kNormal, .std = 1});
  Param bias = Param::of({9}, {.kind = Init::kZero}).as_state();
  Replica() { frozen.frozen = true; }
  std::vector<NamedParam> named() {
    return {{"w", &w, 0}, {"frozen", &frozen, 0}, {"router.bias", &bias, 0}};
  }
};

void flip(const at::Tensor& x, int64_t bit) {
  const at::Tensor bytes = x.detach().view({-1}).view(at::kByte);
  bytes.mutable_data_ptr<uint8_t>()[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
}

// This rank's message; empty: all are equal.
std::string differences(ParamStore& store, const ParallelState& parallel) {
  try {
    require_equal_replicas(store, parallel);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kBrokenContract);
    return e.what();
  }
  return "";
}

// The collectives between ranks that this one has issued so far.
std::vector<Operation> issued(World& world) {
  std::vector<Operation> out;
  world.pulse().flight().visit([&](const FlightRecorder::Raw& raw) {
    if (raw.event == Note::kIssue && raw.operation.ranks > 1) out.push_back(raw.operation);
  });
  return out;
}

TEST(EqualReplicas, TermsOfEqualCopiesAddUpToNothingAndOfOthersDoNot) {
  for (const int64_t count : {1, 2, 8, 64, 512, 3072}) {
    const auto sum_with = [count](const std::vector<int64_t>& ranks, uint64_t bits) {
      uint64_t sum = 0;
      for (int64_t i = 0; i < count; ++i) {
        uint64_t hash = 0x0123456789abcdef;
        for (const int64_t r : ranks) hash ^= r == i ? bits : 0;
        sum += term_of_copy("dense", i, count, hash);
      }
      return sum;
    };
    EXPECT_EQ(sum_with({}, 0), 0u) << count;
    if (count == 1) continue;
    for (const int64_t r : {int64_t{0}, int64_t{1}, count - 1}) {
      for (const uint64_t bits : {uint64_t{1}, uint64_t{1} << 63, ~uint64_t{0}}) {
        EXPECT_NE(sum_with({r}, bits), 0u) << r << " of " << count;
      }
    }
    if (count == 2) continue;  // both alike: no difference
    EXPECT_NE(sum_with({0, count / 2}, 5), 0u) << count;
  }
}

TEST(EqualReplicas, WhereAllAreEqualRanksAddUpFourNumbers) {
  in_ranks(2, [](World& world) {
    const ParallelSetup setup(std::shared_ptr<World>(&world, [](World*) {}),
                              resolve(recipe_of(kSmall), world));
    Replica layer;
    ParamStore store(
        layer.named(), at::TensorOptions(at::kBFloat16),
        [](const NamedParam&) { return BucketKey{}; }, setup.sharing);
    store.initialize_all(3);
    const size_t before = issued(world).size();
    EXPECT_EQ(differences(store, setup.state), "");
    const std::vector<Operation> all = issued(world);
    ASSERT_EQ(all.size(), before + 1);
    EXPECT_EQ(all.back().what, Collective::kAllReduce);
    EXPECT_EQ(all.back().bytes, 4 * 8);
  });
}

TEST(EqualReplicas, ABitOfAnythingThatRanksHaveInCommonIsFoundAndNamed) {
  in_ranks(2, [](World& world) {
    const ParallelSetup setup(std::shared_ptr<World>(&world, [](World*) {}),
                              resolve(recipe_of(kSmall), world));
    Replica layer;
    ParamStore store(
        layer.named(), at::TensorOptions(at::kBFloat16),
        [](const NamedParam&) { return BucketKey{}; }, setup.sharing);
    store.initialize_all(3);
    EXPECT_EQ(differences(store, setup.state), "");
    Bucket& bucket = store.buckets()[0];
    const struct {
      at::Tensor tensor;
      std::string name;
    } cases[] = {{layer.w.value, "w (dense)"},
                 {bucket.low, "w (master, dense, part 1/1)"},
                 {layer.frozen.value, "frozen (dense)"},
                 {layer.bias.value, "router.bias (dense)"}};
    for (const auto& [tensor, name] : cases) {
      for (const int64_t bit : {0, 15, 77}) {
        if (setup.state.rank() == 1) flip(tensor, bit);
        const std::string said = differences(store, setup.state);
        EXPECT_NE(said.find("E9001 differs between ranks that hold the same"), std::string::npos)
            << name << ": " << said;
        // Where values are in halves, the upper one is of the master too.
        EXPECT_NE(said.find(name), std::string::npos) << said;
        if (setup.state.rank() == 0) {
          EXPECT_NE(said.find("rank(s) 1: hash "), std::string::npos) << said;
        }
        if (setup.state.rank() == 1) flip(tensor, bit);
        EXPECT_EQ(differences(store, setup.state), "") << name;
      }
    }
  });
}

}  // namespace
}  // namespace troupe
