#include "troupe/distributed/params/expert_placement.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <string>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/owner_table.h"

namespace troupe {
namespace {

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// The ranks that a row of expert e goes to, of its rank's token of that number.
std::vector<int64_t> destinations(const ExpertPlacement& p, int32_t e, int64_t token) {
  const at::Tensor ids = at::full({1, 1}, e, at::kInt), index = at::full({1}, token, at::kLong);
  const at::Tensor sent = OwnerTable(p).sent(ids, index).flatten().nonzero().flatten();
  return {sent.const_data_ptr<int64_t>(), sent.const_data_ptr<int64_t>() + sent.numel()};
}

TEST(ExpertPlacement, H1_RankROwnsAContiguousBlock) {
  const ExpertPlacement p = contiguous(8, 4);
  EXPECT_EQ(p.held_by(0), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(p.held_by(3), (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(destinations(p, 5, 123), (std::vector<int64_t>{2}));
}

TEST(ExpertPlacement, H1_RefusesWhatDoesNotDivideAndNamesTheNearest) {
  const std::string what = refusal([] { contiguous(6, 4); });
  EXPECT_NE(what.find("6 experts"), std::string::npos) << what;
  EXPECT_NE(what.find("4 ranks"), std::string::npos) << what;
  EXPECT_NE(what.find("is 3"), std::string::npos) << what;
}

TEST(ExpertPlacement, H1_AListMayBeUneven) {
  const ExpertPlacement p = listed(4, {{0}, {0}, {1}, {1}, {2}, {3}});
  EXPECT_EQ(p.held_by(0), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(p.held_by(3), (std::vector<int64_t>{5}));
}

TEST(ExpertPlacement, H1_RunsOfAnyNumberDifferByOneExpert) {
  const ExpertPlacement p = in_runs(6, 4);
  EXPECT_EQ(p.held_by(0), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(p.held_by(1), (std::vector<int64_t>{2}));
  EXPECT_EQ(p.held_by(2), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(p.held_by(3), (std::vector<int64_t>{5}));
  for (int64_t ranks = 1; ranks <= 40; ++ranks) {
    for (int64_t experts = ranks; experts <= 100; ++experts) {
      const ExpertPlacement q = in_runs(experts, ranks);
      ASSERT_EQ(q.experts(), experts);
      EXPECT_EQ(std::ssize(q.held_by(0)), (experts + ranks - 1) / ranks);  // none holds more
      int64_t next = 0;
      for (int64_t r = 0; r < ranks; ++r) {
        const std::vector<int64_t> held = q.held_by(r);
        ASSERT_GE(std::ssize(held), experts / ranks);
        ASSERT_LE(std::ssize(held), (experts + ranks - 1) / ranks);
        for (const int64_t e : held) ASSERT_EQ(e, next++);
      }
    }
  }
}

TEST(ExpertPlacement, E21_ARankMayHoldNoExpert) {
  EXPECT_TRUE(listed(3, {{0}, {2}}).held_by(1).empty());
}

TEST(ExpertPlacement, H1_AReplicaIsChosenByTheTokensIndexAlone) {
  const ExpertPlacement p = listed(3, {{2, 0}, {1}});
  EXPECT_EQ(destinations(p, 0, 4), (std::vector<int64_t>{0}));
  EXPECT_EQ(destinations(p, 0, 5), (std::vector<int64_t>{2}));
  EXPECT_EQ(destinations(p, 1, 5), (std::vector<int64_t>{1}));
}

TEST(ExpertPlacement, RefusesAListWithoutOwnerTwiceOrOutside) {
  EXPECT_NE(refusal([] { listed(2, {{0}, {}}); }).find("placement[1]"), std::string::npos);
  EXPECT_NE(refusal([] { listed(2, {{0, 0}}); }).find("placement[0]"), std::string::npos);
  EXPECT_NE(refusal([] { listed(2, {{2}}); }).find("placement[0]"), std::string::npos);
}

TEST(ExpertPlacement, H2_EachSliceHoldsItsColumnsAndRowsGoToAllOfThem) {
  const ExpertPlacement p = hidden_sharded(2, 4, 10);
  EXPECT_EQ(p.slices(), 2);
  EXPECT_EQ(p.owners(0), (std::vector<int32_t>{0, 2}));  // rank r: block r mod 2, slice r div 2
  EXPECT_EQ(p.owners(1), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(p.slice_of(1), 0);
  EXPECT_EQ(p.slice_of(2), 1);
  EXPECT_EQ(destinations(p, 1, 7), (std::vector<int64_t>{1, 3}));
}

TEST(ExpertPlacement, H2_IsContiguousWhereThereAreEnoughExperts) {
  const ExpertPlacement p = hidden_sharded(8, 4, 7);
  EXPECT_EQ(p.slices(), 1);
  EXPECT_EQ(p.held_by(1), (std::vector<int64_t>{2, 3}));
}

TEST(ExpertPlacement, T16_SlicedExpertsLieOnNeighborsInRunsOfExperts) {
  const ExpertPlacement p = sliced(4, 2, 3, 12);
  EXPECT_EQ(p.ranks(), 6);
  EXPECT_EQ(p.slices(), 3);
  EXPECT_EQ(p.owners(1), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(p.owners(2), (std::vector<int32_t>{3, 4, 5}));
  for (int64_t r = 0; r < 6; ++r) EXPECT_EQ(p.slice_of(r), r % 3);
  EXPECT_EQ(p.held_by(4), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(sliced(4, 2, 1, 12).slices(), 1);
  EXPECT_NE(refusal([] { sliced(4, 2, 5, 12); }).find("parallel.expert_tensor"), std::string::npos);
}

TEST(ExpertPlacement, H2_RefusesAWidthOrRanksThatDoNotDivide) {
  EXPECT_NE(refusal([] { hidden_sharded(2, 4, 7); }).find("width 7"), std::string::npos);
  EXPECT_NE(refusal([] { hidden_sharded(4, 6, 8); }).find("6 ranks"), std::string::npos);
}

}  // namespace
}  // namespace troupe
