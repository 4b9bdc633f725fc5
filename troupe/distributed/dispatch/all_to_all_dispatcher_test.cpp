#include "troupe/distributed/dispatch/all_to_all_dispatcher.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <tuple>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/local_dispatcher.h"
#include "troupe/distributed/dispatch/wire.h"
#include "troupe/distributed/world/fp8_rows_problem_test.h"
#include "troupe/distributed/world/ranks_problem_test.h"
#include "troupe/ops/combine.h"
#include "troupe/ops/permute.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using namespace ranks_problem;
using testing::in_ranks;
using Mode = DispatchMode;

std::unique_ptr<Dispatcher> over(World& world, const ExpertPlacement& placement, Mode mode) {
  return all_to_all_dispatcher(world.all(), placement, mode);
}

void compare(World& world, const Case& c, const ExpertPlacement& p, const Options& o = {}) {
  ranks_problem::compare(world, all_to_all_dispatcher, c, p, o);
}

void compare_all(World& world) {
  ranks_problem::compare_all(world, all_to_all_dispatcher);
}

TEST(AllToAllDispatcher, H5_TwoRanks) {
  in_ranks(2, compare_all);
}
TEST(AllToAllDispatcher, H5_ThreeRanks) {
  in_ranks(3, compare_all);
}
TEST(AllToAllDispatcher, H5_FourRanks) {
  in_ranks(4, compare_all);
}
TEST(AllToAllDispatcher, H5_EightRanks) {
  in_ranks(8, [](World& world) {
    const ExpertPlacement p = contiguous(16, 8);
    compare(world, {.tokens = {9, 0, 5, 1, 30, 2, 17, 8}, .experts = 16}, p);
  });
}

TEST(AllToAllDispatcher, H4_RanksWithFewManyAndNoTokens) {
  in_ranks(4, [](World& world) {
    compare(world, {.tokens = {0, 5, 0, 1000}}, contiguous(8, 4));
    compare(world, {.tokens = {0, 5, 0, 1000}, .type = at::kBFloat16}, contiguous(8, 4));
  });
}

TEST(AllToAllDispatcher, P3_C6_SegmentsAreAlignedAndAsLongAsTheCapacitiesTogether) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    compare(world, {.tokens = {20, 13}}, p, {.alignment = 16});
    compare(world, {.tokens = {20, 13}}, p, {.alignment = 4, .capacity = 20});
    const Case c{.tokens = {6, 3}};
    const Inputs own = part_of(draw(c), c, p, world.rank());
    for (const Mode mode : {Mode::kFast, Mode::kExact}) {
      const auto d = over(world, p, mode);
      const DispatchedRows rows =
          d->begin(own.x_TD, {own.ids_TK, own.scores_TK, 1, c.tokens[world.rank()]}).finish();
      EXPECT_EQ(rows.plan.expert_offset[4].item<int>(), 4 * 9);
    }
  });
}

TEST(AllToAllDispatcher, C7_RowsWithoutRoomAreThoseOfVirtualRanksAndCounted) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    const Case c{.tokens = {20, 30}, .load = Load::kHotRank};
    const Inputs all = draw(c), own = part_of(all, c, p, world.rank());
    const Options room{.budget = 25};
    const Results want = run(*virtual_ranks_dispatcher(p), all, room);
    for (const Mode mode : {Mode::kFast, Mode::kExact}) {
      const auto d = over(world, p, mode);
      const Results got = run(*d, own, room);
      const auto lost = world.all()->all_reduced(got.lost).item<int64_t>();
      EXPECT_GT(lost, 0);
      EXPECT_EQ(lost, want.lost.item<int64_t>());
      const double bound = mode == Mode::kFast ? 0 : 1e-5;
      expect_equal(got, part_of(want, c, p, world.rank()), to_text(mode), bound);
    }
  });
}

// Experts may be held by any ranks, also by none of a rank's.
TEST(AllToAllDispatcher, H1_UnevenPlacementAndRanksWithoutExperts) {
  in_ranks(4, [](World& world) {
    const Case c{.tokens = {11, 4, 0, 17}, .experts = 6};
    for (const auto& p :
         {listed(4, {{0}, {0}, {1}, {1}, {2}, {3}}), listed(4, {{3}, {1}, {3}, {1}, {3}, {3}}),
          listed(4, {{2}, {2}, {2}, {2}, {2}, {2}})}) {
      compare(world, c, p);
      compare(world, {.tokens = c.tokens, .type = at::kBFloat16, .experts = 6}, p,
              {.alignment = 8});
    }
  });
}

// A gradient of an expert, added over the ranks that hold it, at its global place.
at::Tensor summed_over_ranks(World& world, const ExpertPlacement& p, const at::Tensor& held,
                             const std::vector<int64_t>& whole_sizes) {
  const at::Tensor whole = at::zeros(whole_sizes, held.options());
  const auto experts = p.held_by(world.rank());
  for (size_t i = 0; i < experts.size(); ++i)
    whole[experts[i]].copy_(held[static_cast<int64_t>(i)]);
  return world.all()->all_reduced(whole);
}

TEST(AllToAllDispatcher, H1_ReplicasShareTheTokensAndTheirGradientsAddUp) {
  in_ranks(3, [](World& world) {
    const ExpertPlacement p = listed(3, {{0, 1, 2}, {0}, {1}, {1, 2}, {2}, {0}});
    // Virtual ranks choose by the index over all tokens: the same where each rank's are whole
    // sixes.
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const Case c{.tokens = {12, 18, 6}, .type = type, .experts = 6};
      const Inputs all = draw(c), own = part_of(all, c, p, world.rank());
      for (const Mode mode : {Mode::kFast, Mode::kExact}) {
        const auto oracle =
            mode == Mode::kFast ? virtual_ranks_dispatcher(p) : local_dispatcher(c.experts);
        const Results whole = run(*oracle, all);
        Results want = part_of(whole, c, p, world.rank()), got = run(*over(world, p, mode), own);
        got.w1 = summed_over_ranks(world, p, got.w1, whole.w1.sizes().vec());
        got.w2 = summed_over_ranks(world, p, got.w2, whole.w2.sizes().vec());
        // f64 products are a library's, whose bits may depend on how many rows there are.
        const auto bits = [](Results r) { return r.w1 = r.w2 = r.out_TD, r; };
        if (type == at::kFloat) expect_equal(bits(got), bits(want), to_text(mode));
        want.w1 = whole.w1;
        want.w2 = whole.w2;
        expect_equal(got, want, to_text(mode), type == at::kFloat ? 1e-5 : 1e-12);
      }
    }
  });
}

TEST(AllToAllDispatcher, H2_FourRanksHoldSlicesOfTwoExperts) {
  in_ranks(4, [](World& world) {
    const ExpertPlacement p = hidden_sharded(2, 4, kF);
    const Case c{.tokens = {7, 0, 12, 3}, .type = at::kDouble, .experts = 2, .choices = 2};
    const Inputs all = draw(c), own = part_of(all, c, p, world.rank());
    EXPECT_EQ(own.w2.size(2), kF / 2);
    const Results want = part_of(run(*local_dispatcher(2), all), c, p, world.rank());
    for (const Mode mode : {Mode::kFast, Mode::kExact}) {
      expect_equal(run(*over(world, p, mode), own), want, to_text(mode), 1e-12);
    }
  });
}

// Experts that change nothing: each token comes back as it went, its scores adding up to 1.
TEST(AllToAllDispatcher, IdentityExpertsGiveEachTokenBack) {
  in_ranks(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    Case c{.tokens = {5, 0, 16, 3}, .masked = 0, .choices = 4};
    const Inputs own = part_of(draw(c), c, p, world.rank());
    const at::Tensor x = (own.x_TD * 16).round().requires_grad_();
    const at::Tensor ids = own.ids_TK.clamp_min(0);  // one token may have an expert four times
    const at::Tensor scores = at::full(ids.sizes(), 0.25);
    for (const Mode mode : {Mode::kFast, Mode::kExact}) {
      x.mutable_grad().reset();
      const auto d = over(world, p, mode);
      const DispatchedRows rows = d->begin(x, {ids, scores}).finish();
      const at::Tensor y = combine(permute(rows.source_SD, rows.plan), rows.plan, rows.scores_SK);
      const at::Tensor out = rows.combine(y);
      EXPECT_TRUE(out.equal(x)) << to_text(mode);
      out.backward(x.detach() * 3);
      EXPECT_TRUE(x.grad().equal(x.detach() * 3)) << to_text(mode);
    }
  });
}

// As a pipeline does: several microbatches forward before the first goes back.
TEST(AllToAllDispatcher, FourMicrobatchesInFlightEqualOneAfterAnother) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    for (const Mode mode : {Mode::kFast, Mode::kExact}) {
      const auto d = over(world, p, mode);
      std::vector<Inputs> own;
      std::vector<Results> want;
      for (uint64_t m = 0; m < 6; ++m) {
        const auto n = static_cast<int64_t>(m);
        const Case c{.tokens = {11 + n, 30 - 5 * n}, .seed = 20 + m};
        own.push_back(part_of(draw(c), c, p, world.rank()));
        want.push_back(run(*d, own.back()));
      }
      std::vector<Forward> flying(6);
      const auto finish = [&](size_t m) {
        expect_equal(flying[m].backward(), want[m], to_text(mode) + std::to_string(m));
        flying[m] = {};
      };
      for (size_t m = 0; m < 4; ++m) flying[m] = forward(*d, own[m]);
      finish(0);
      flying[4] = forward(*d, own[4]);
      finish(1);
      flying[5] = forward(*d, own[5]);
      for (size_t m = 2; m < 6; ++m) finish(m);
    }
  });
}

// As after an error: the next rows go and come as ever.
TEST(AllToAllDispatcher, RowsThatNobodyWaitsForHoldNothing) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    const Case c{.tokens = {3, 4}};
    const Inputs own = part_of(draw(c), c, p, world.rank());
    const auto d = over(world, p, Mode::kFast);
    const Results want = run(*d, own);
    d->begin(own.x_TD, {own.ids_TK, own.scores_TK});
    d->begin(own.x_TD, {own.ids_TK, own.scores_TK}).finish();
    expect_equal(run(*d, own), want, "after rows that were dropped");
  });
}

// A placement that changes while rows are in flight: they go home as they went out.
TEST(AllToAllDispatcher, RowsInFlightKeepTheirPlacement) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    const Case c{.tokens = {13, 4}};
    const Inputs own = part_of(draw(c), c, p, world.rank());
    const auto d = over(world, p, Mode::kFast);
    const Results want = run(*d, own);
    const Forward flying = forward(*d, own);
    d->place(listed(2, {{1}, {1}, {1}, {1}, {0}, {0}, {0}, {0}}));
    expect_equal(flying.backward(), want, "placed anew before backward");
  });
}

TEST(AllToAllDispatcher, TwoHundredRandomRounds) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(4, 2);
    const auto fast = over(world, p, Mode::kFast), exact = over(world, p, Mode::kExact);
    const auto virtual_ranks = virtual_ranks_dispatcher(p), one = local_dispatcher(4);
    for (uint64_t round = 0; round < 200; ++round) {
      at::manual_seed(1000 + round);
      const at::Tensor sizes = at::rand({3}, at::kDouble);
      const auto below = [&](int64_t i, double n) {
        return static_cast<int64_t>(sizes[i].item<double>() * n);
      };
      const Case c{.tokens = {below(0, 40), below(1, 9)},
                   .load = static_cast<Load>(round % 6),
                   .experts = 4,
                   .choices = 2 + below(2, 3),
                   .seed = round};
      const Inputs all = draw(c), own = part_of(all, c, p, world.rank());
      const bool odd = round % 2 == 1;
      expect_equal(run(odd ? *fast : *exact, own),
                   part_of(run(odd ? *virtual_ranks : *one, all), c, p, world.rank()),
                   text_of(c, p));
    }
  });
}

std::unique_ptr<Dispatcher> in_int8(World& world, const ExpertPlacement& p) {
  return all_to_all_dispatcher(world.all(), p, Mode::kFast, WireType::kInt8);
}

// Rows of 256 are as long in fp8 (Q8-33).
TEST(AllToAllDispatcher, Q4_RowsOutInInt8AreAQuarterOrHalfOfTheBytes) {
  in_ranks(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    const auto sent = [&] {
      const at::Tensor bytes = at::full({1}, world.all()->bytes_to_others(), at::kLong);
      return world.all()->all_reduced(bytes).item<int64_t>();
    };
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Case c{.tokens = {40, 0, 25, 33}, .type = type, .width = 256};
      const Inputs all = draw(c), own = part_of(all, c, p, world.rank());
      // Each copy sends ids, scores and its row, and gets a row back; each rank sends counts to the
      // others. Backward sends the same without ids and counts.
      const int64_t copies = copies_off_node(all, c, p, 1, false), routing_bytes = 4 * c.choices;
      const int64_t counts = 4 * 3 * 3 * 4;
      const int64_t row = 256 * static_cast<int64_t>(at::elementSize(type));
      ASSERT_GT(copies, 0);
      for (const WireType wire : {WireType::kNative, WireType::kInt8, WireType::kFp8}) {
        const auto d = all_to_all_dispatcher(world.all(), p, Mode::kFast, wire);
        const int64_t out = wire == WireType::kNative ? row : 256 + 16, start = sent();
        const Forward f = forward(*d, own);
        const int64_t forth = sent() - start;
        f.backward();
        EXPECT_EQ(forth, counts + copies * (2 * routing_bytes + out + row)) << to_text(wire);
        EXPECT_EQ(sent() - start - forth, copies * (routing_bytes + out + row)) << to_text(wire);
      }
      EXPECT_LT(256 + 16, (type == at::kFloat ? 0.27 : 0.54) * static_cast<double>(row));
    }
  });
}

TEST(AllToAllDispatcher, Q4_RowsOutInInt8ChangeOutputsAndGradientsByAPercent) {
  in_ranks(4, [](World& world) {
    const auto compare_int8 = [&](const Case& c, const ExpertPlacement& p, const Options& o = {}) {
      const Inputs own = part_of(draw(c), c, p, world.rank());
      const auto d = in_int8(world, p);
      const Results want = run(*over(world, p, Mode::kFast), own, o), got = run(*d, own, o);
      const std::string what = text_of(c, p);
      expect_equal(run(*d, own, o), got, what + " once more");
      for (const auto& [g, w, name] :
           {std::tuple{got.out_TD, want.out_TD, "out"}, std::tuple{got.x_TD, want.x_TD, "grad x"},
            std::tuple{got.scores_TK, want.scores_TK, "grad scores"},
            std::tuple{got.w1, want.w1, "grad w1"}, std::tuple{got.w2, want.w2, "grad w2"}}) {
        ASSERT_EQ(g.sizes(), w.sizes()) << what;
        EXPECT_EQ(g.scalar_type(), w.scalar_type()) << what << ' ' << name;
        const double error = relative_error(g, w);
        const bool many = c.all() > 1000;
        EXPECT_LE(error, many ? 2e-2 : 5e-2) << what << ' ' << name;  // of the 2e-1 that Q4 allows
        if (many && w.numel() > 0) {
          EXPECT_GT(error, 1e-4) << what << ' ' << name;
        }
      }
    };
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      compare_int8({.tokens = {500, 0, 4, 700}, .type = type, .width = 64}, contiguous(8, 4));
      compare_int8({.tokens = {7, 0, 21, 15}, .type = type}, contiguous(8, 4));
    }
    const Case c{.tokens = {20, 13, 0, 1}, .width = 80};
    compare_int8(c, contiguous(8, 4), {.alignment = 16});
    compare_int8(c, contiguous(8, 4), {.alignment = 4, .capacity = 20});
    compare_int8(c, contiguous(8, 4), {.budget = 10});
    for (const Load load : {Load::kHotRank, Load::kTwice, Load::kNone}) {
      compare_int8({.tokens = {20, 13, 0, 1}, .load = load}, contiguous(8, 4));
    }
    compare_int8({.tokens = {0, 0, 0, 0}}, contiguous(8, 4));
    compare_int8({.tokens = {7, 0, 12, 3}, .experts = 2, .choices = 2}, hidden_sharded(2, 4, kF));
  });
}

TEST(AllToAllDispatcher, Q8_33_RowsInFp8AreRoundedOnceWhereTheyAreSent) {
  in_ranks(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    const auto made = [&](WireType wire) {
      return all_to_all_dispatcher(world.all(), p, Mode::kFast, wire);
    };
    compare_fp8_all(world, made, p);
    const Case c{.tokens = {20, 13, 0, 1}, .width = 80};
    compare_fp8(world, made, c, p, {.alignment = 4, .capacity = 20});
    const auto sliced = [&](WireType wire) {
      return all_to_all_dispatcher(world.all(), hidden_sharded(2, 4, kF), Mode::kFast, wire);
    };
    compare_fp8(world, sliced, {.tokens = {7, 0, 12, 3}, .experts = 2, .choices = 2},
                hidden_sharded(2, 4, kF));
    EXPECT_THROW(all_to_all_dispatcher(world.all(), p, Mode::kExact, WireType::kFp8), Error);
    EXPECT_TRUE(made(WireType::kFp8)->info().description.ends_with(", rows out in fp8"));
  });
}

TEST(AllToAllDispatcher, Q8_33_ANaNStaysSeenInFp8AndInItsToken) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    const Case c{.tokens = {9, 12}, .type = at::kBFloat16, .masked = 0, .width = 48};
    Inputs own = part_of(draw(c), c, p, world.rank());
    own.x_TD[2][33].fill_(NAN);
    const auto d = all_to_all_dispatcher(world.all(), p, Mode::kFast, WireType::kFp8);
    const Results got = run(*d, own);
    const at::Tensor at_2 = at::arange(own.x_TD.size(0)).eq(2);
    EXPECT_TRUE(got.out_TD.isfinite().logical_not().any(1).equal(at_2));
    EXPECT_FALSE(got.w1.isfinite().all().item<bool>());
  });
}

// Gradients far below what fp16 holds, and no rank's rows beside another's.
TEST(AllToAllDispatcher, Q4_GradientsOfAnySizeTravelInInt8) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    const Case c{.tokens = {40, 30}, .width = 64};
    Inputs own = part_of(draw(c), c, p, world.rank());
    own.grad_TD = own.grad_TD * 1e-15;
    const Results want = run(*over(world, p, Mode::kFast), own), got = run(*in_int8(world, p), own);
    EXPECT_LE(relative_error(got.x_TD, want.x_TD), 2e-2);
    EXPECT_LE(relative_error(got.w1, want.w1), 2e-2);
  });
}

// What guards look for is not lost on the way: the same tokens have NaN as without int8.
TEST(AllToAllDispatcher, Q4_ANaNStaysSeenInInt8AndInItsToken) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const double bad : {double{NAN}, double{INFINITY}}) {
        const Case c{.tokens = {9, 12}, .type = type, .masked = 0, .width = 48};
        Inputs own = part_of(draw(c), c, p, world.rank());
        const auto ill_tokens = [](const at::Tensor& x_TD) {
          return x_TD.isfinite().logical_not().any(1);
        };
        const at::Tensor at_2 = at::arange(own.x_TD.size(0)).eq(2);
        own.x_TD[2][33].fill_(bad);
        const Results forth = run(*in_int8(world, p), own);
        EXPECT_TRUE(ill_tokens(forth.out_TD).equal(at_2)) << bad;
        EXPECT_TRUE(forth.out_TD[2].isnan().all().item<bool>()) << bad;
        EXPECT_FALSE(forth.w1.isfinite().all().item<bool>()) << bad;

        own = part_of(draw(c), c, p, world.rank());
        own.grad_TD[2][33].fill_(bad);
        const Results back = run(*in_int8(world, p), own);
        EXPECT_TRUE(back.out_TD.isfinite().all().item<bool>()) << bad;
        EXPECT_TRUE(ill_tokens(back.x_TD).equal(at_2)) << bad;
        EXPECT_FALSE(back.w2.isfinite().all().item<bool>()) << bad;
      }
    }
  });
}

TEST(AllToAllDispatcher, Q4_MicrobatchesInFlightInInt8EqualOneAfterAnother) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    const auto d = in_int8(world, p);
    std::vector<Forward> flying;
    std::vector<Results> want;
    for (uint64_t m = 0; m < 3; ++m) {
      const Case c{.tokens = {11 + static_cast<int64_t>(m), 30}, .seed = 20 + m};
      const Inputs own = part_of(draw(c), c, p, world.rank());
      want.push_back(run(*d, own));
      flying.push_back(forward(*d, own));
    }
    for (const size_t m : {1, 0, 2}) expect_equal(flying[m].backward(), want[m], "in flight");
  });
}

// It sends nothing, so nothing is rounded.
TEST(AllToAllDispatcher, Q4_OfOneRankInInt8IsTheLocalOne) {
  const auto alone = std::make_shared<ProcessGroup>();
  const Inputs in = draw({.tokens = {19}, .type = at::kBFloat16});
  const auto d = all_to_all_dispatcher(alone, contiguous(8, 1), Mode::kFast, WireType::kInt8);
  expect_equal(run(*d, in), run(*local_dispatcher(8), in), "int8");
}

TEST(AllToAllDispatcher, Q4_RefusesInt8WithExactAndNamesItAtTheStart) {
  in_ranks(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    EXPECT_THROW(all_to_all_dispatcher(world.all(), p, Mode::kExact, WireType::kInt8), Error);
    EXPECT_EQ(in_int8(world, p)->info().description,
              "all-to-all, fast: 8 experts on ranks 0, 1 over gloo, rows out in int8");
  });
}

TEST(AllToAllDispatcher, OfOneRankIsTheLocalOne) {
  const Case c{.tokens = {19}, .type = at::kBFloat16};
  const Inputs in = draw(c);
  for (const Mode mode : {Mode::kFast, Mode::kExact}) {
    const auto d = all_to_all_dispatcher(std::make_shared<ProcessGroup>(), contiguous(8, 1), mode);
    expect_equal(run(*d, in), run(*local_dispatcher(8), in), to_text(mode));
    EXPECT_TRUE(d->info().host_reads);
  }
}

TEST(AllToAllDispatcher, RefusesAPlacementOnOtherRanksAndSizesThatDoNotAgree) {
  const auto alone = std::make_shared<ProcessGroup>();
  EXPECT_THROW(all_to_all_dispatcher(alone, contiguous(8, 2), Mode::kFast), Error);
  const auto d = all_to_all_dispatcher(alone, contiguous(8, 1), Mode::kFast);
  EXPECT_EQ(d->info().description, "all-to-all, fast: 8 experts on rank 0");
  EXPECT_THROW(d->begin(at::zeros({3, 2}), {at::zeros({4, 1}, at::kInt), at::zeros({4, 1})}),
               Error);
}

}  // namespace
}  // namespace troupe
