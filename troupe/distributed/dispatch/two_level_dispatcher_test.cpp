#include "troupe/distributed/dispatch/two_level_dispatcher.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "troupe/core/check.h"
#include "troupe/distributed/world/fp8_rows_problem_test.h"
#include "troupe/distributed/world/node_groups.h"
#include "troupe/distributed/world/ranks_problem_test.h"
#include "troupe/ops/combine.h"
#include "troupe/ops/permute.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using namespace ranks_problem;
using testing::in_ranks;
using Mode = DispatchMode;

std::unique_ptr<Dispatcher> over(World& world, int64_t per_node, const ExpertPlacement& p,
                                 Mode mode) {
  return two_level_dispatcher(node_groups(world, world.all(), per_node), p, mode);
}

// Those of a sum over nodes; of the rest kFast, too, has the oracle's bits.
Results without_sums(Results r) {
  r.out_TD = r.x_TD = r.scores_TK;
  return r;
}

double rounding_of(at::ScalarType type) {
  if (type == at::kDouble) return 1e-12;
  return type == at::kFloat ? 1e-4 : 0.5;  // of values up to about 60, three times
}

// kExact against one process bit for bit; kFast against virtual ranks but for the sum's order,
// which is theirs where a node has one rank, or all.
void compare(World& world, int64_t per_node, const Case& c, const ExpertPlacement& p,
             const Options& o = {}) {
  const Inputs all = draw(c), own = part_of(all, c, p, world.rank());
  Options whole = o;
  whole.capacity *= p.ranks();
  const bool one_level = per_node == 1 || per_node == world.size();
  for (const Mode mode : {Mode::kFast, Mode::kExact}) {
    const auto oracle =
        mode == Mode::kFast ? virtual_ranks_dispatcher(p) : local_dispatcher(c.experts);
    const auto d = over(world, per_node, p, mode);
    const std::string what =
        std::to_string(per_node) + " a node, " + to_text(mode) + ", " + text_of(c, p);
    const Results got = run(*d, own, o);
    const Results want = part_of(run(*oracle, all, whole), c, p, world.rank());
    const double bound = mode == Mode::kExact || one_level ? 0 : rounding_of(c.type);
    expect_equal(got, want, what, bound);
    expect_equal(without_sums(got), without_sums(want), what);
    expect_equal(run(*d, own, o), got, what + " once more");
  }
}

TEST(TwoLevelDispatcher, H5_TwoNodesOfTwoAndTheOtherWaysToCutFourRanks) {
  in_ranks(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    const std::vector<int64_t> ragged{7, 0, 21, 15};
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const int64_t per_node : {2, 1, 4}) {
        compare(world, per_node, {.tokens = ragged, .type = type}, p);
      }
      compare(world, 2, {.tokens = {0, 0, 0, 33}, .type = type}, p);
    }
    for (const std::vector<int64_t>& tokens :
         {std::vector<int64_t>(4, 20), std::vector<int64_t>(4, 1), std::vector<int64_t>(4, 0),
          std::vector<int64_t>{0, 5, 0, 300}}) {
      compare(world, 2, {.tokens = tokens}, p);
    }
    for (const Load load :
         {Load::kBalanced, Load::kHotExpert, Load::kHotRank, Load::kTwice, Load::kNone}) {
      compare(world, 2, {.tokens = ragged, .load = load}, p);
    }
    compare(world, 2, {.tokens = ragged}, p, {.alignment = 16});
    compare(world, 2, {.tokens = ragged}, p, {.alignment = 4, .capacity = 21});
  });
}

TEST(TwoLevelDispatcher, H5_EightRanksAsTwoNodesOfFourAndFourOfTwo) {
  in_ranks(8, [](World& world) {
    for (const int64_t per_node : {4, 2}) {
      compare(world, per_node, {.tokens = {9, 0, 5, 1, 30, 2, 17, 8}, .experts = 16},
              contiguous(16, 8));
    }
  });
}

// Results are those of all_to_all_dispatcher, also where one process has no like.
void compare_with_a2a(World& world, const Case& c, const ExpertPlacement& p,
                      const Options& o = {}) {
  const Inputs own = part_of(draw(c), c, p, world.rank());
  for (const Mode mode : {Mode::kFast, Mode::kExact}) {
    const Results want = run(*all_to_all_dispatcher(world.all(), p, mode), own, o);
    const Results got = run(*over(world, 2, p, mode), own, o);
    expect_equal(got, want, to_text(mode), mode == Mode::kExact ? 0 : rounding_of(c.type));
    if (p.slices() == 1) expect_equal(without_sums(got), without_sums(want), to_text(mode));
    EXPECT_EQ(got.lost.defined(), want.lost.defined());
    if (got.lost.defined()) {
      EXPECT_TRUE(got.lost.equal(want.lost)) << got.lost << want.lost;
    }
  }
}

TEST(TwoLevelDispatcher, H1_H2_C7_AnyPlacementAndRanksWithoutRoomAsAllToAll) {
  in_ranks(4, [](World& world) {
    const Case c{.tokens = {12, 6, 0, 18}, .experts = 6};
    for (const auto& p :
         {listed(4, {{0}, {0}, {1}, {1}, {2}, {3}}), listed(4, {{3}, {1}, {3}, {1}, {3}, {3}}),
          listed(4, {{2}, {2}, {2}, {2}, {2}, {2}}),
          // Replicas, within a node and over two.
          listed(4, {{0, 1, 2}, {0}, {1, 3}, {2, 3}, {2}, {0, 1}})}) {
      compare_with_a2a(world, c, p);
      compare_with_a2a(world, {.tokens = c.tokens, .type = at::kBFloat16, .experts = 6}, p);
    }
    const Case two{.tokens = {7, 0, 12, 3}, .type = at::kDouble, .experts = 2, .choices = 2};
    compare_with_a2a(world, two, hidden_sharded(2, 4, kF));
    const Case one{.tokens = {7, 0, 12, 3}, .type = at::kDouble, .experts = 1, .choices = 1};
    compare_with_a2a(world, one, hidden_sharded(1, 4, kF));
    const Case hot{.tokens = {20, 30, 0, 9}, .load = Load::kHotRank};
    compare_with_a2a(world, hot, contiguous(8, 4), {.budget = 25});
  });
}

TEST(TwoLevelDispatcher, ATokenCrossesOnceToANodeAndOneRowComesBack) {
  in_ranks(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    const Case c{.tokens = {40, 0, 25, 33}};
    const Inputs all = draw(c), own = part_of(all, c, p, world.rank());
    const NodeGroups groups = node_groups(world, world.all(), 2);
    const auto crossed = [&] {
      const at::Tensor bytes = at::full({1}, groups.across->bytes_to_others(), at::kLong);
      return world.all()->all_reduced(bytes).item<int64_t>();
    };
    const auto d = two_level_dispatcher(groups, p, Mode::kFast);
    const int64_t start = crossed();
    const Forward f = forward(*d, own);
    const int64_t forth = crossed() - start;
    f.backward();
    const int64_t back = crossed() - start - forth;
    const int64_t copies = copies_off_node(all, c, p, 2, true), K = c.choices;
    // Each copy sends ids, scores, the token's index and its row, and gets a row back; each rank
    // sends counts to the other node.
    const int64_t counts = 4 * 4 * (2 + 2 * 2), row = 4 * kD;
    EXPECT_EQ(forth, counts + copies * (4 * (2 * K + 1) + 2 * row));
    EXPECT_EQ(back, copies * (2 * row + 4 * K));
    EXPECT_GT(copies, 0);
    EXPECT_LT(copies, copies_off_node(all, c, p, 2, false));  // which all-to-all sends
  });
}

// Experts that change nothing: no sum has a rounding, so the modes agree.
TEST(TwoLevelDispatcher, IdentityExpertsGiveEachTokenBackWithFourMicrobatchesInFlight) {
  in_ranks(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    for (const Mode mode : {Mode::kFast, Mode::kExact}) {
      const auto d = over(world, 2, p, mode);
      struct Flying {
        at::Tensor x, out;
      };
      std::vector<Flying> flying;
      for (uint64_t m = 0; m < 4; ++m) {
        const Case c{.tokens = {5, 0, 16, 3 + static_cast<int64_t>(m)}, .choices = 4, .seed = m};
        const Inputs own = part_of(draw(c), c, p, world.rank());
        const at::Tensor x = (own.x_TD * 16).round().requires_grad_();
        const at::Tensor ids = own.ids_TK.clamp_min(0);
        const DispatchedRows rows = d->begin(x, {ids, at::full(ids.sizes(), 0.25)}).finish();
        const at::Tensor y = combine(permute(rows.source_SD, rows.plan), rows.plan, rows.scores_SK);
        flying.push_back({x, rows.combine(y)});
        EXPECT_TRUE(flying.back().out.equal(x)) << to_text(mode);
      }
      for (const Flying& f : flying) {
        f.out.backward(f.x.detach() * 3);
        EXPECT_TRUE(f.x.grad().equal(f.x.detach() * 3)) << to_text(mode);
      }
    }
  });
}

// A row is rounded once, on its way across; so ranks have the rows that all-to-all would bring.
TEST(TwoLevelDispatcher, Q4_RowsInInt8AreRoundedOnceAndThoseOfAllToAll) {
  in_ranks(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    const NodeGroups groups = node_groups(world, world.all(), 2);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Case c{.tokens = {7, 0, 21, 15}, .type = type, .width = 96};
      const Inputs own = part_of(draw(c), c, p, world.rank());
      const auto direct = all_to_all_dispatcher(world.all(), p, Mode::kFast, WireType::kInt8);
      const auto d = two_level_dispatcher(groups, p, Mode::kFast, WireType::kInt8);
      const Results want = run(*direct, own), got = run(*d, own);
      expect_equal(without_sums(got), without_sums(want), text_of(c, p));
      for (const auto& [g, w] :
           {std::pair{got.out_TD, want.out_TD}, std::pair{got.x_TD, want.x_TD}}) {
        EXPECT_LE(relative_error(g, w), type == at::kFloat ? 1e-6 : 1e-2);
      }
    }
    EXPECT_THROW(two_level_dispatcher(groups, p, Mode::kExact, WireType::kInt8), Error);
  });
}

TEST(TwoLevelDispatcher, Q8_33_RowsInFp8AreRoundedOnceOnTheirWayAcross) {
  in_ranks(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    const NodeGroups groups = node_groups(world, world.all(), 2);
    const auto made = [&](WireType wire) {
      return two_level_dispatcher(groups, p, Mode::kFast, wire);
    };
    compare_fp8_all(world, made, p);
  });
}

TEST(TwoLevelDispatcher, OfOneRankIsTheLocalOne) {
  World world;
  const Case c{.tokens = {19}, .type = at::kBFloat16};
  const Inputs in = draw(c);
  for (const Mode mode : {Mode::kFast, Mode::kExact}) {
    const auto d = over(world, 1, contiguous(8, 1), mode);
    expect_equal(run(*d, in), run(*local_dispatcher(8), in), to_text(mode));
    EXPECT_TRUE(d->info().host_reads);
    EXPECT_EQ(d->info().description,
              "two-level, " + to_text(mode) + ": 8 experts on rank 0, 1 nodes of 1");
  }
}

TEST(TwoLevelDispatcher, RefusesNodesThatDoNotDivideAndAPlacementOnOtherRanks) {
  World world;
  EXPECT_THROW(node_groups(world, world.all(), 2), Error);
  EXPECT_THROW(node_groups(world, world.all(), 0), Error);
  EXPECT_THROW(over(world, 1, contiguous(8, 2), Mode::kFast), Error);
  const auto d = over(world, 1, contiguous(8, 1), Mode::kFast);
  EXPECT_THROW(d->begin(at::zeros({3, 2}), {at::zeros({4, 1}, at::kInt), at::zeros({4, 1})}),
               Error);
}

}  // namespace
}  // namespace troupe
