#include "troupe/distributed/mesh/process_mesh.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/testing/cpu_seconds.h"
#include "troupe/testing/sanitized.h"

namespace troupe {
namespace {

using Kind = GroupKind;

std::string groups(const ProcessMesh& mesh, Kind kind) {
  std::string out;
  for (const auto& group : mesh.all(kind)) {
    for (const int64_t rank : group) out += std::to_string(rank) + ' ';
    out.back() = '|';
  }
  out.pop_back();
  return out;
}

// The coordinates of every rank, counted up as an odometer whose first wheel is the fastest.
using Coordinates = std::map<std::string, int64_t>;
std::vector<Coordinates> odometer(const std::vector<std::pair<std::string, int64_t>>& wheels) {
  std::vector<Coordinates> out;
  Coordinates now;
  for (const auto& [name, size] : wheels) now[name] = 0;
  for (size_t wheel = 0; wheel < wheels.size();) {
    out.push_back(now);
    for (wheel = 0; wheel < wheels.size() && ++now[wheels[wheel].first] == wheels[wheel].second;) {
      now[wheels[wheel++].first] = 0;
    }
  }
  return out;
}

// What each kind keeps fixed, said in coordinates; an oracle that shares no arithmetic with Mesh.
class Oracle {
 public:
  Oracle(int64_t world, const MeshShape& s) : shard_(s.shard), cp_(s.context) {
    const int64_t stage = world / s.pipeline;
    const int64_t dp = stage / s.tensor / s.context, edp = stage / s.expert_tensor / s.expert;
    const bool in = s.order == MeshOrder::kDataInStage;
    const std::pair<std::string, int64_t> pp{"pp", s.pipeline}, d{"dp", dp}, e{"edp", edp};
    dense_ = odometer({{"tp", s.tensor}, {"cp", s.context}, in ? d : pp, in ? pp : d});
    expert_ = odometer({{"etp", s.expert_tensor}, {"ep", s.expert}, in ? e : pp, in ? pp : e});
    if (shard_ == 0) shard_ = dp * s.context;
  }

  bool together(Kind kind, int64_t a, int64_t b) const {
    switch (kind) {
      case Kind::kWorld: return true;
      case Kind::kTensor: return same(dense_, a, b, {"cp", "dp", "pp"});
      case Kind::kContext: return same(dense_, a, b, {"tp", "dp", "pp"});
      case Kind::kPipeline: return same(dense_, a, b, {"tp", "cp", "dp"});
      case Kind::kData: return same(dense_, a, b, {"tp", "pp"});
      case Kind::kExpert: return same(expert_, a, b, {"etp", "edp", "pp"});
      case Kind::kExpertTensor: return same(expert_, a, b, {"ep", "edp", "pp"});
      case Kind::kExperts: return same(expert_, a, b, {"edp", "pp"});
      case Kind::kMicrobatch: return same(dense_, a, b, {"dp", "pp"});
      case Kind::kStage: return same(dense_, a, b, {"pp"});
      case Kind::kExpertData: return same(expert_, a, b, {"etp", "ep", "pp"});
      case Kind::kShard: return together(Kind::kData, a, b) && block(a) == block(b);
      case Kind::kReplicate:
        return together(Kind::kData, a, b) && data(a) % shard_ == data(b) % shard_;
      case Kind::kExpertShard: return together(Kind::kExpertData, a, b) && block(a) == block(b);
      case Kind::kExpertReplicate:
        return together(Kind::kExpertData, a, b) && place_in_block(a) == place_in_block(b);
    }
    return false;
  }

  // Whether a and b share parameters that `repeat` neighboring TP ranks hold alike.
  bool share(int64_t repeat, int64_t a, int64_t b) const {
    return same(dense_, a, b, {"pp"}) && dense_[a].at("tp") / repeat == dense_[b].at("tp") / repeat;
  }
  bool own(int64_t repeat, int64_t a, int64_t b) const {
    return share(repeat, a, b) && block(a) == block(b);
  }

  bool stages_agree() const {
    for (size_t r = 0; r < dense_.size(); ++r) {
      if (dense_[r].at("pp") != expert_[r].at("pp")) return false;
    }
    return true;
  }

 private:
  static bool same(const std::vector<Coordinates>& all, int64_t a, int64_t b,
                   const std::vector<std::string>& fixed) {
    for (const std::string& name : fixed) {
      if (all[a].at(name) != all[b].at(name)) return false;
    }
    return true;
  }
  int64_t data(int64_t r) const { return dense_[r].at("cp") + cp_ * dense_[r].at("dp"); }
  int64_t block(int64_t r) const { return data(r) / shard_; }
  int64_t place_in_block(int64_t rank) const {
    int64_t place = 0;
    for (int64_t r = 0; r < rank; ++r) place += together(Kind::kExpertShard, r, rank);
    return place;
  }

  int64_t shard_, cp_;
  std::vector<Coordinates> dense_, expert_;
};

void check_every_property(int64_t world, const MeshShape& shape) {
  const ProcessMesh mesh(world, shape);
  const Oracle oracle(world, shape);
  EXPECT_TRUE(oracle.stages_agree());
  for (const auto& [name, kind] : names_of(Kind{})) {
    for (int64_t a = 0; a < world; ++a) {
      std::vector<int64_t> expected;
      for (int64_t b = 0; b < world; ++b) {
        if (oracle.together(kind, a, b)) expected.push_back(b);
      }
      ASSERT_EQ(mesh.ranks_of(kind, a), expected) << name << " of " << a << '\n' << to_text(mesh);
      ASSERT_EQ(mesh.size(kind), static_cast<int64_t>(expected.size())) << name;
    }
  }
  for (int64_t repeat = 1; repeat <= shape.tensor; ++repeat) {
    if (shape.tensor % repeat != 0) continue;
    for (int64_t a = 0; a < world; ++a) {
      std::vector<int64_t> sharers, owners;
      for (int64_t b = 0; b < world; ++b) {
        if (oracle.share(repeat, a, b)) sharers.push_back(b);
        if (oracle.own(repeat, a, b)) owners.push_back(b);
      }
      ASSERT_EQ(mesh.sharers_of(a, repeat), sharers) << repeat << '\n' << to_text(mesh);
      ASSERT_EQ(mesh.owners_of(a, repeat), owners) << repeat << '\n' << to_text(mesh);
    }
  }
}

// Every mesh of `world` ranks that is not refused.
template <class F>
int64_t for_each_mesh(int64_t world, F&& f) {
  int64_t count = 0;
  const auto each = [&](int64_t& size, int64_t first, auto&& next) {
    for (size = first; size <= world; ++size) {
      if (size == 0 || world % size == 0) next();
    }
  };
  MeshShape s;
  for (const MeshOrder order : {MeshOrder::kDataInStage, MeshOrder::kStageInData}) {
    s.order = order;
    const auto last = [&] {
      if (!ProcessMesh::faults(world, s).empty()) return;
      f(s);
      ++count;
    };
    each(s.tensor, 1, [&] {
      each(s.context, 1, [&] {
        each(s.pipeline, 1, [&] {
          each(s.expert, 1, [&] { each(s.expert_tensor, 1, [&] { each(s.shard, 0, last); }); });
        });
      });
    });
  }
  return count;
}

TEST(ProcessMesh, SixteenRanksAreTheTableByHand) {
  const ProcessMesh mesh(16, {.tensor = 2, .context = 2, .pipeline = 2, .expert = 4, .shard = 2});
  EXPECT_EQ(to_text(mesh),
            "16 ranks, order tp-cp-ep-dp-pp\n"
            "attention  tensor 2 x context 2 x data 2 x pipeline 2\n"
            "experts    expert_tensor 1 x expert 4 x expert_data 2 x pipeline 2\n"
            "world             1 group of 16: 0 1 2 .. 15\n"
            "tensor            8 groups of 2: 0 1, 2 3, 4 5, 6 7, 8 9, 10 11, 12 13, 14 15\n"
            "context           8 groups of 2: 0 2, 1 3, 4 6, 5 7, 8 10, 9 11, 12 14, 13 15\n"
            "pipeline          8 groups of 2: 0 8, 1 9, 2 10, 3 11, 4 12, 5 13, 6 14, 7 15\n"
            "data              4 groups of 4: 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15\n"
            "expert            4 groups of 4: 0 1 2 3, 4 5 6 7, 8 9 10 11, 12 13 14 15\n"
            "expert_tensor     16 groups of 1: 0, 1, 2, .. 15\n"
            "expert_data       8 groups of 2: 0 4, 1 5, 2 6, 3 7, 8 12, 9 13, 10 14, 11 15\n"
            "shard             8 groups of 2: 0 2, 1 3, 4 6, 5 7, 8 10, 9 11, 12 14, 13 15\n"
            "replicate         8 groups of 2: 0 4, 1 5, 2 6, 3 7, 8 12, 9 13, 10 14, 11 15\n"
            "expert_shard      16 groups of 1: 0, 1, 2, .. 15\n"
            "expert_replicate  8 groups of 2: 0 4, 1 5, 2 6, 3 7, 8 12, 9 13, 10 14, 11 15\n"
            "microbatch        4 groups of 4: 0 1 2 3, 4 5 6 7, 8 9 10 11, 12 13 14 15\n"
            "stage             2 groups of 8: 0 1 2 3 4 5 6 7, 8 9 10 11 12 13 14 15\n"
            "experts           4 groups of 4: 0 1 2 3, 4 5 6 7, 8 9 10 11, 12 13 14 15\n"
            "whole_owners      4 groups of 4: 0 1 2 3, 4 5 6 7, 8 9 10 11, 12 13 14 15\n");
}

TEST(ProcessMesh, SixteenRanksInTheOtherOrderAreTheTableByHand) {
  const ProcessMesh mesh(16, {.tensor = 2,
                              .context = 2,
                              .pipeline = 2,
                              .expert = 2,
                              .expert_tensor = 2,
                              .order = MeshOrder::kStageInData});
  EXPECT_EQ(groups(mesh, Kind::kTensor), "0 1|2 3|4 5|6 7|8 9|10 11|12 13|14 15");
  EXPECT_EQ(groups(mesh, Kind::kContext), "0 2|1 3|4 6|5 7|8 10|9 11|12 14|13 15");
  EXPECT_EQ(groups(mesh, Kind::kPipeline), "0 4|1 5|2 6|3 7|8 12|9 13|10 14|11 15");
  EXPECT_EQ(groups(mesh, Kind::kData), "0 2 8 10|1 3 9 11|4 6 12 14|5 7 13 15");
  EXPECT_EQ(groups(mesh, Kind::kExpertTensor), "0 1|2 3|4 5|6 7|8 9|10 11|12 13|14 15");
  EXPECT_EQ(groups(mesh, Kind::kExpert), "0 2|1 3|4 6|5 7|8 10|9 11|12 14|13 15");
  EXPECT_EQ(groups(mesh, Kind::kExpertData), "0 8|1 9|2 10|3 11|4 12|5 13|6 14|7 15");
  EXPECT_EQ(groups(mesh, Kind::kExpertShard), groups(mesh, Kind::kExpertData));
}

TEST(ProcessMesh, H3_ExpertsFoldOverTensorAndContextRanks) {
  const ProcessMesh mesh(8, {.tensor = 4, .context = 2, .expert = 8});
  EXPECT_EQ(mesh.data(), 1);
  EXPECT_EQ(mesh.expert_data(), 1);
  EXPECT_EQ(groups(mesh, Kind::kTensor), "0 1 2 3|4 5 6 7");
  EXPECT_EQ(groups(mesh, Kind::kContext), "0 4|1 5|2 6|3 7");
  EXPECT_EQ(groups(mesh, Kind::kData), groups(mesh, Kind::kContext));
  EXPECT_EQ(groups(mesh, Kind::kExpert), "0 1 2 3 4 5 6 7");
  EXPECT_EQ(mesh.size(Kind::kExpertData), 1);
}

TEST(ProcessMesh, ThreeAndSixRanks) {
  EXPECT_EQ(groups(ProcessMesh(3, {.expert = 3}), Kind::kExpert), "0 1 2");
  EXPECT_EQ(groups(ProcessMesh(3, {}), Kind::kExpertData), "0 1 2");
  const ProcessMesh six(6, {.pipeline = 2, .expert = 3});
  EXPECT_EQ(groups(six, Kind::kData), "0 1 2|3 4 5");
  EXPECT_EQ(groups(six, Kind::kPipeline), "0 3|1 4|2 5");
  EXPECT_EQ(groups(six, Kind::kExpert), "0 1 2|3 4 5");
  EXPECT_EQ(groups(ProcessMesh(6, {.expert = 2, .shard = 2}), Kind::kReplicate), "0 2 4|1 3 5");
}

TEST(ProcessMesh, OneRankIsAloneInEveryGroup) {
  for (const auto& [name, kind] : names_of(Kind{}))
    EXPECT_EQ(groups(ProcessMesh(1, {}), kind), "0");
}

TEST(ProcessMesh, ShardBlocksCutTheExpertsWhereTheyCutTheData) {
  const ProcessMesh mesh(8, {.expert = 2, .shard = 4});
  EXPECT_EQ(groups(mesh, Kind::kShard), "0 1 2 3|4 5 6 7");
  EXPECT_EQ(groups(mesh, Kind::kReplicate), "0 4|1 5|2 6|3 7");
  EXPECT_EQ(groups(mesh, Kind::kExpertShard), "0 2|1 3|4 6|5 7");
  EXPECT_EQ(groups(mesh, Kind::kExpertReplicate), "0 4|1 5|2 6|3 7");
  const ProcessMesh small(8, {.expert = 4, .shard = 2});
  EXPECT_EQ(small.size(Kind::kExpertShard), 1);
  EXPECT_EQ(groups(small, Kind::kExpertReplicate), "0 4|1 5|2 6|3 7");
  // Experts that span TP ranks are cut over all ranks that hold them, of any TP coordinate.
  EXPECT_EQ(groups(ProcessMesh(8, {.tensor = 4, .expert = 2}), Kind::kExpertShard),
            "0 2 4 6|1 3 5 7");
}

TEST(ProcessMesh, EveryMeshOfUpToTwelveRanksIsTheOracles) {
  int64_t count = 0;
  for (const int64_t world : {1, 2, 3, 4, 6, 8, 12}) {
    if (world > unless_sanitized(12, 6)) break;
    count += for_each_mesh(world, [&](const MeshShape& s) { check_every_property(world, s); });
  }
  EXPECT_GT(count, unless_sanitized(1000, 50));
}

TEST(ProcessMesh, GroupsPartitionTheRanksAndTheirSizesMultiply) {
  for (const int64_t world : {9, 16}) {
    if (world > unless_sanitized(16, 9)) break;
    for_each_mesh(world, [&](const MeshShape& shape) {
      const ProcessMesh mesh(world, shape);
      const auto size = [&](Kind kind) { return mesh.size(kind); };
      for (const auto& [name, kind] : names_of(Kind{})) {
        std::set<int64_t> seen;
        for (const auto& group : mesh.all(kind)) {
          ASSERT_EQ(static_cast<int64_t>(group.size()), mesh.size(kind));
          for (const int64_t rank : group) ASSERT_TRUE(seen.insert(rank).second) << name;
        }
        ASSERT_EQ(static_cast<int64_t>(seen.size()), world) << name;
      }
      ASSERT_EQ(size(Kind::kTensor) * size(Kind::kData) * size(Kind::kPipeline), world);
      ASSERT_EQ(size(Kind::kContext) * mesh.data(), size(Kind::kData));
      ASSERT_EQ(size(Kind::kExpertTensor) * size(Kind::kExpert) * size(Kind::kExpertData) *
                    size(Kind::kPipeline),
                world);
      ASSERT_EQ(size(Kind::kShard) * size(Kind::kReplicate), size(Kind::kData));
      ASSERT_EQ(size(Kind::kExpertShard) * size(Kind::kExpertReplicate), size(Kind::kExpertData));
      for (const auto& [along, across] : {std::pair{Kind::kShard, Kind::kReplicate},
                                          {Kind::kExpertShard, Kind::kExpertReplicate}}) {
        const auto a = mesh.ranks_of(along, 0), b = mesh.ranks_of(across, 0);
        std::vector<int64_t> both;
        std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
        ASSERT_EQ(both, std::vector<int64_t>{0});
      }
    });
  }
}

// The table of model parallelism's ranks, tensor 2 x context 2 x data 2 x pipeline 2.
TEST(ProcessMesh, SixteenRanksOnFourAxesShareAsWritten) {
  const ProcessMesh mesh(16, {.tensor = 2, .context = 2, .pipeline = 2, .expert = 4});
  const auto of_first = [&](Kind kind) { return mesh.ranks_of(kind, 0); };
  using Ranks = std::vector<int64_t>;
  EXPECT_EQ(of_first(Kind::kMicrobatch), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(of_first(Kind::kStage), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(of_first(Kind::kExperts), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(of_first(Kind::kShard), (Ranks{0, 2, 4, 6}));
  EXPECT_EQ(mesh.owners_of(0, 2), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(mesh.owners_of(9, 1), (Ranks{9, 11, 13, 15}));
  EXPECT_EQ(mesh.data_index(9), 0);
  EXPECT_EQ(mesh.data_index(15), 3);
  EXPECT_THROW(mesh.owners_of(0, 3), Error);
  EXPECT_NE(to_text(mesh).find("\nwhole_owners      2 groups of 8: 0 1 2 3 4 5 6 7, "
                               "8 9 10 11 12 13 14 15\n"),
            std::string::npos)
      << to_text(mesh);
}

TEST(ProcessMesh, ThreeThousandRanksAreGroupedInTime) {
  const double begin = cpu_seconds();
  const ProcessMesh mesh(3072,
                         {.tensor = 2, .context = 2, .pipeline = 4, .expert = 64, .shard = 96});
  size_t members = 0;
  for (const auto& [name, kind] : names_of(Kind{})) {
    for (const auto& group : mesh.all(kind)) members += group.size();
  }
  EXPECT_EQ(members, names_of(Kind{}).size() * 3072U);
  EXPECT_EQ(mesh.data(), 192);
  EXPECT_EQ(mesh.expert_data(), 12);
  EXPECT_EQ(mesh.size(Kind::kExpertShard), 3);
  EXPECT_NE(to_text(mesh).find("\nexpert            48 groups of 64: 0 1 2 .. 63, 64 65 66 .. 127, "
                               "128 129 130 .. 191, .. 3008 3009 3010 .. 3071\n"),
            std::string::npos)
      << to_text(mesh);
  EXPECT_LT(cpu_seconds() - begin, 10);  // a quadratic one takes minutes
}

std::string faults(int64_t world, const MeshShape& shape) {
  std::string out;
  for (const std::string& fault : ProcessMesh::faults(world, shape)) out += fault + '\n';
  return out;
}

TEST(ProcessMesh, RefusesWhatDoesNotDivideAndNamesTheNearest) {
  EXPECT_EQ(faults(16, {.tensor = 3}),
            "parallel.tensor: E2005 3 does not divide the 16 ranks of a stage; use 2 or 4\n");
  EXPECT_EQ(faults(16, {.pipeline = 6, .expert = 32}),
            "parallel.pipeline: E2005 6 stages do not divide 16 ranks; use 4 or 8\n"
            "parallel.expert: E2005 32 does not divide the 16 ranks of a stage; use 16\n");
  EXPECT_EQ(faults(8, {.tensor = 4, .context = 4}),
            "parallel.context: E2005 tensor 4 times context 4 does not divide the 8 ranks of a "
            "stage; with tensor 4 use context 2\n");
  EXPECT_EQ(faults(16, {.shard = 5}),
            "parallel.shard_ranks: E2005 5 does not divide the 16 ranks that hold the same dense "
            "parameters; use 4 or 8\n");
  EXPECT_EQ(faults(0, {.tensor = 0, .shard = -1}),
            "parallel: E2005 a mesh of 0 ranks\nparallel.tensor: E2005 0 is less than 1\n"
            "parallel.shard_ranks: E2005 -1 is less than 0\n");
}

TEST(ProcessMesh, RefusesBlocksThatCutExpertsUnevenly) {
  EXPECT_EQ(
      faults(6, {.expert = 2, .shard = 3}),
      "parallel.shard_ranks: E2005 3 times tensor 1 ranks cut unequal parts of the expert-data "
      "groups, which take every rank in 2 (expert_tensor x expert); use 2 or 6\n");
  EXPECT_EQ(faults(12, {.expert = 4, .shard = 5}),
            "parallel.shard_ranks: E2005 5 does not divide the 12 ranks that hold the same dense "
            "parameters; use 4 or 12\n");
}

TEST(ProcessMesh, RefusesNoBlocksThatCutExpertsEvenly) {
  int64_t even = 0, uneven = 0;
  for (const int64_t tensor : {1, 2, 3, 4, 6, 12}) {
    for (const int64_t expert : {1, 2, 3, 4, 6, 12}) {
      for (int64_t shard = 1; shard <= 12 / tensor; ++shard) {
        if (12 / tensor % shard != 0) continue;
        const MeshShape shape{.tensor = tensor, .expert = expert, .shard = shard};
        const Oracle oracle(12, shape);
        std::set<int64_t> sizes;
        for (int64_t a = 0; a < 12; ++a) {
          int64_t size = 0;
          for (int64_t b = 0; b < 12; ++b) size += oracle.together(Kind::kExpertShard, a, b);
          sizes.insert(size);
        }
        ASSERT_EQ(ProcessMesh::faults(12, shape).empty(), sizes.size() == 1) << faults(12, shape);
        ++(sizes.size() == 1 ? even : uneven);
      }
    }
  }
  EXPECT_GT(even, 50);
  EXPECT_GT(uneven, 5);
}

TEST(ProcessMesh, RefusesStagesThatAttentionAndExpertsWouldNotShare) {
  const MeshShape shape{.tensor = 2, .pipeline = 2, .expert = 4, .order = MeshOrder::kStageInData};
  EXPECT_EQ(faults(16, shape),
            "parallel.order: E2005 tp-cp-ep-pp-dp with 2 stages: tensor x context = 2 and "
            "expert_tensor x expert = 4 differ, so that attention and experts would not share the "
            "stages; use tp-cp-ep-dp-pp, or expert 2\n");
}

TEST(ProcessMesh, ThrowsAllFaultsAtOnce) {
  try {
    const ProcessMesh mesh(16, {.tensor = 3, .expert = 5});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kBadValue);
    EXPECT_NE(std::string(e.what()).find("\nparallel.expert: E2005 5 "), std::string::npos);
  }
  EXPECT_THROW(ProcessMesh(4, {}).ranks_of(Kind::kData, 4), Error);
}

TEST(ProcessMesh, WhatAFaultSuggestsIsAccepted) {
  const ProcessMesh mesh(6, {.expert = 2, .shard = 2});  // "use 2 or 6", above
  EXPECT_EQ(mesh.size(Kind::kShard), 2);
  EXPECT_TRUE(ProcessMesh::faults(6, {.expert = 2, .shard = 6}).empty());
  EXPECT_TRUE(ProcessMesh::faults(12, {.expert = 4, .shard = 12}).empty());
}

TEST(ProcessMesh, AShapeIsAConfigThatReadsBack) {
  MeshShape shape;
  read_config(override_yaml("order=tp-cp-ep-pp-dp"), shape);
  read_config(override_yaml("expert=8"), shape);
  EXPECT_EQ(shape.order, MeshOrder::kStageInData);
  EXPECT_EQ(shape.expert, 8);
}

}  // namespace
}  // namespace troupe
