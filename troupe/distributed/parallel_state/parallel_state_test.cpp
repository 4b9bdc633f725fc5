#include "troupe/distributed/parallel_state/parallel_state.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

std::shared_ptr<World> played(int64_t rank, int64_t size) {
  return std::make_shared<World>(LauncherEnvironment{.rank = rank, .size = size}, c10::kCPU,
                                 WorldOptions{.played = true});
}

TEST(ParallelState, OneRankIsEverythingAndSendsNothing) {
  const ParallelState one;
  EXPECT_TRUE(one.alone() && one.writes_logs());
  EXPECT_TRUE(one.first_of_microbatch() && one.first_of_replica());
  EXPECT_EQ(one.data_ranks(), 1);
  EXPECT_EQ(one.data_index(), 0);
  EXPECT_FALSE(one.sum_over_all());
  EXPECT_FALSE(one.sum_over_stage());
  EXPECT_EQ(one.all_reduce({1, 2}), (std::vector<double>{1, 2}));
  EXPECT_EQ(one.all_reduce_stages({3}), (std::vector<double>{3}));
  EXPECT_EQ(one.all_gather_texts("t", "mine"), (std::vector<std::string>{"mine"}));
  EXPECT_NO_THROW(one.require_equal("t", "mine"));
}

// Against the coordinates in either order of the mesh, of all worlds of up to twelve ranks: replicas
// are numbered without gaps, and each, each stage of it and each of its microbatches is reported
// once.
TEST(ParallelState, EachReplicaIsReportedOnceInEveryMeshOfUpToTwelveRanks) {
  int meshes = 0;
  for (int64_t size = 1; size <= 12; ++size) {
    for (const MeshOrder order : {MeshOrder::kDataInStage, MeshOrder::kStageInData}) {
      for (int64_t tensor = 1; tensor <= size; ++tensor) {
        for (int64_t context = 1; context <= size; ++context) {
          for (int64_t pipeline = 1; pipeline <= size; ++pipeline) {
            const MeshShape shape{
                .tensor = tensor, .context = context, .pipeline = pipeline, .order = order};
            if (!ProcessMesh::faults(size, shape).empty()) continue;
            ++meshes;
            const int64_t data = size / (tensor * context * pipeline);
            std::map<int64_t, int> replicas;                           // index: who reports it
            std::map<std::pair<int64_t, int>, int> microbatches;       // and stage
            std::set<std::tuple<int64_t, int, int64_t, int64_t>> all;  // who has which part
            for (int64_t rank = 0; rank < size; ++rank) {
              const ParallelState state(played(rank, size), shape);
              const int64_t part = rank % tensor, in_stage = rank / (tensor * context);
              const bool inside = order == MeshOrder::kDataInStage;
              EXPECT_EQ(state.data_index(), inside ? in_stage % data : in_stage / pipeline);
              EXPECT_EQ(state.stage_rank(), inside ? in_stage / data : in_stage % pipeline);
              EXPECT_EQ(state.context_rank(), rank / tensor % context);
              EXPECT_EQ(state.data_ranks(), data);
              EXPECT_EQ(state.stage_ranks(), pipeline);
              EXPECT_EQ(state.context_ranks(), context);
              EXPECT_EQ(state.writes_logs(), rank == 0);
              replicas[state.data_index()] += state.first_of_replica();
              microbatches[{state.data_index(), state.stage_rank()}] += state.first_of_microbatch();
              all.insert({state.data_index(), state.stage_rank(), state.context_rank(), part});
            }
            EXPECT_EQ(std::ssize(all), size);
            EXPECT_EQ(std::ssize(replicas), data);
            for (const auto& [index, count] : replicas) EXPECT_EQ(count, 1) << index;
            for (const auto& [where, count] : microbatches) EXPECT_EQ(count, 1) << where.first;
          }
        }
      }
    }
  }
  EXPECT_GT(meshes, 200);
}

TEST(ParallelState, SumsAreOverAllOverAStageAndOverAPipeline) {
  testing::in_threads(4, [](World& world) {
    const ParallelState state(std::shared_ptr<World>(&world, [](World*) {}),
                              {.tensor = 2, .pipeline = 2});
    const auto own = static_cast<double>(1 << state.rank());
    EXPECT_EQ(state.all_reduce({own, 1}), (std::vector<double>{15, 4}));
    const double stage = state.stage_rank() == 0 ? 3 : 12,
                 pipeline = state.rank() % 2 == 0 ? 5 : 10;
    EXPECT_EQ(state.all_reduce_stages({own}), (std::vector<double>{pipeline}));
    const at::Tensor x = at::full({2}, own, at::kDouble);
    EXPECT_TRUE(state.sum_over_stage()(x).eq(stage).all().item<bool>());
    EXPECT_TRUE(state.sum_over_all()(x).eq(15).all().item<bool>());
    EXPECT_EQ(state.group(GroupKind::kTensor)->size(), 2);
  });
}

// Rank r sends r + d bytes to rank d, each with its number and the receiver's.
TEST(ParallelState, BytesReachTheirRank) {
  testing::in_threads(3, [](World& world) {
    const ParallelState state(std::shared_ptr<World>(&world, [](World*) {}), {});
    const int64_t me = state.rank();
    std::vector<std::byte> out, in, want;
    std::vector<int64_t> to, from;
    for (int64_t other = 0; other < 3; ++other) {
      to.push_back(me + other);
      from.push_back(other + me);
      out.insert(out.end(), static_cast<size_t>(me + other), std::byte(10 * me + other));
      want.insert(want.end(), static_cast<size_t>(other + me), std::byte(10 * other + me));
    }
    in.resize(want.size());
    state.all_to_all({.out = out, .to = to, .in = in, .from = from});
    EXPECT_EQ(in, want);
  });
}

TEST(ParallelState, F90_RanksThatDifferAreNamed) {
  testing::in_threads(3, [](World& world) {
    const ParallelState state(std::shared_ptr<World>(&world, [](World*) {}), {});
    EXPECT_NO_THROW(state.require_equal("seed", "1"));
    try {
      state.require_equal("data", state.rank() == 1 ? "b" : "a");
      ADD_FAILURE() << "not noticed";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kRanksDiffer);
      EXPECT_NE(std::string(e.what()).find("rank(s) 0, 2: a; rank(s) 1: b"), std::string::npos)
          << e.what();
    }
  });
}

// A run has a hundred keys that must be the same: one round of the store, and another where they
// are not.
TEST(ParallelState, ManyValuesAreComparedInOneRoundAndTheFirstThatDiffersIsNamed) {
  testing::in_threads(3, [](World& world) {
    const ParallelState state(std::shared_ptr<World>(&world, [](World*) {}), {});
    ParallelState::NamedValues values;
    for (int i = 0; i < 100; ++i) values.emplace_back("model.key" + std::to_string(i), "1");
    EXPECT_NO_THROW(state.require_equal("fingerprint", values));
    EXPECT_TRUE(world.store().peek("texts/fingerprint/all"));
    for (const auto& [name, value] : values) {
      EXPECT_FALSE(world.store().peek("texts/" + name + "/all")) << name;
    }
    if (state.rank() == 1) values[40].second = "3", values[70].second = "5";
    try {
      state.require_equal("fingerprint", values);
      ADD_FAILURE() << "not noticed";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kRanksDiffer);
      EXPECT_NE(std::string(e.what()).find(
                    "model.key40: E2010 differs between ranks - rank(s) 0, 2: 1; rank(s) 1: 3"),
                std::string::npos)
          << e.what();
    }
    if (state.rank() == 2) values.emplace_back("model.more", "1");
    values[40].second = "1", values[70].second = "1";
    EXPECT_THROW(state.require_equal("fingerprint", values), Error);
  });
}

}  // namespace
}  // namespace troupe
