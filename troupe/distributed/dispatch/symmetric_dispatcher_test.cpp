#include "troupe/distributed/dispatch/symmetric_dispatcher.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <optional>

#include "troupe/core/check.h"
#include "troupe/distributed/group/symmetric_heap.h"
#include "troupe/distributed/world/fp8_rows_problem_test.h"
#include "troupe/distributed/world/ranks_problem_test.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using namespace ranks_problem;
using testing::in_ranks;
using testing::in_ranks_that_end;
using testing::in_threads;
using Mode = DispatchMode;

std::unique_ptr<Dispatcher> over(World& world, const ExpertPlacement& placement, Mode mode) {
  return symmetric_dispatcher(world.all(), placement, mode);
}

void compare(World& world, const Case& c, const ExpertPlacement& p, const Options& o = {}) {
  ranks_problem::compare(world, symmetric_dispatcher, c, p, o);
}

void compare_all(World& world) {
  ranks_problem::compare_all(world, symmetric_dispatcher);
}

TEST(SymmetricDispatcher, H5_TwoRanks) {
  in_threads(2, compare_all);
}
TEST(SymmetricDispatcher, H5_ThreeProcesses) {
  in_ranks(3, compare_all);
}
TEST(SymmetricDispatcher, H5_FourRanks) {
  in_threads(4, compare_all);
}
TEST(SymmetricDispatcher, H5_EightRanks) {
  in_threads(8, [](World& world) {
    compare(world, {.tokens = {9, 0, 5, 1, 30, 2, 17, 8}, .experts = 16}, contiguous(16, 8));
  });
}

TEST(SymmetricDispatcher, P3_C6_SegmentsAreAlignedAndAsLongAsTheCapacitiesTogether) {
  in_threads(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    compare(world, {.tokens = {20, 13}}, p, {.alignment = 16});
    compare(world, {.tokens = {20, 13}}, p, {.alignment = 4, .capacity = 20});
  });
}

TEST(SymmetricDispatcher, H1_H2_AnyPlacement) {
  in_threads(4, [](World& world) {
    const Case c{.tokens = {12, 6, 0, 18}, .experts = 6};
    compare(world, c, listed(4, {{3}, {1}, {3}, {1}, {3}, {3}}));
    const Case two{.tokens = {7, 0, 12, 3}, .type = at::kDouble, .experts = 2, .choices = 2};
    const ExpertPlacement slices = hidden_sharded(2, 4, kF);
    const ExpertPlacement replicas = listed(4, {{0, 1, 2}, {0}, {1}, {1, 3}, {2}, {0}});
    const Inputs mine = part_of(draw(c), c, replicas, world.rank());
    const Inputs all = draw(two), own = part_of(all, two, slices, world.rank());
    const Results want = part_of(run(*local_dispatcher(2), all), two, slices, world.rank());
    for (const Mode mode : {Mode::kFast, Mode::kExact}) {
      expect_equal(run(*over(world, slices, mode), own), want, to_text(mode), 1e-12);
      // Replicas: outputs and what goes back to the tokens are those of all-to-all.
      expect_equal(run(*over(world, replicas, mode), mine),
                   run(*all_to_all_dispatcher(world.all(), replicas, mode), mine), to_text(mode));
    }
  });
}

TEST(SymmetricDispatcher, C7_RowsWithoutRoomAreCounted) {
  in_threads(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    const Case c{.tokens = {20, 30}, .load = Load::kHotRank};
    const Inputs own = part_of(draw(c), c, p, world.rank());
    for (const Mode mode : {Mode::kFast, Mode::kExact}) {
      const Results want = run(*all_to_all_dispatcher(world.all(), p, mode), own, {.budget = 25});
      const Results got = run(*over(world, p, mode), own, {.budget = 25});
      EXPECT_TRUE(got.lost.equal(want.lost));
      expect_equal(got, want, to_text(mode));
    }
  });
}

TEST(SymmetricDispatcher, Q4_RowsInInt8AreThoseOfAllToAll) {
  in_threads(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    const auto made = [&](Maker make) {
      return make(world.all(), p, Mode::kFast, WireType::kInt8);
    };
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const Case c{.tokens = {7, 0, 21, 15}, .type = type, .width = 40};
      const Inputs own = part_of(draw(c), c, p, world.rank());
      expect_equal(run(*made(symmetric_dispatcher), own), run(*made(all_to_all_dispatcher), own),
                   text_of(c, p));
    }
    EXPECT_THROW(symmetric_dispatcher(world.all(), p, Mode::kExact, WireType::kInt8), Error);
  });
}

TEST(SymmetricDispatcher, Q8_33_RowsInFp8AreRoundedOnceWhereTheyAreLaid) {
  in_threads(4, [](World& world) {
    const ExpertPlacement p = contiguous(8, 4);
    const auto made = [&](WireType wire) {
      return symmetric_dispatcher(world.all(), p, Mode::kFast, wire);
    };
    compare_fp8_all(world, made, p);
    compare_fp8(world, made, {.tokens = {20, 0, 30, 4}, .width = 40}, p, {.most = 43});
    const Case c{.tokens = {7, 0, 21, 15}, .width = 40};
    const Inputs own = part_of(draw(c), c, p, world.rank());
    const auto sent = all_to_all_dispatcher(world.all(), p, Mode::kFast, WireType::kFp8);
    expect_equal(run(*made(WireType::kFp8), own), run(*sent, own), "fp8 of all-to-all");
    EXPECT_THROW(symmetric_dispatcher(world.all(), p, Mode::kExact, WireType::kFp8), Error);
  });
}

// Buffers are larger then, and rows are the same.
TEST(SymmetricDispatcher, H5_WhatRanksSayInAdvanceChangesNoBit) {
  in_threads(3, [](World& world) {
    const ExpertPlacement p = contiguous(6, 3);
    for (const int64_t most : {30, 43}) {
      compare(world, {.tokens = {20, 0, 30}, .experts = 6}, p, {.most = most});
      compare(world, {.tokens = {0, 7, 1}, .type = at::kDouble, .experts = 6}, p, {.most = most});
    }
    compare(world, {.tokens = {0, 0, 0}, .experts = 6}, p, {.most = 1});
    const auto d = over(world, p, Mode::kFast);
    const Inputs own = part_of(draw({.tokens = {5, 5, 5}}), {.tokens = {5, 5, 5}}, p, world.rank());
    EXPECT_THROW(forward(*d, own, {.most = 4}), Error);
    EXPECT_THROW(forward(*d, own, {.capacity = 5, .most = 5}), Error);
  });
}

TEST(SymmetricDispatcher, ARankThatKnowsTheMostTokensSendsBeforeOthersCome) {
  std::promise<void> sent;
  const std::shared_future<void> seen = sent.get_future().share();
  in_threads(2, [&](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    const Case c{.tokens = {3, 4}};
    const Inputs own = part_of(draw(c), c, p, world.rank());
    const auto d = over(world, p, Mode::kFast);
    const Results want = run(*d, own);  // there is room now
    if (world.rank() == 1) {
      TROUPE_CHECK(seen.wait_for(std::chrono::seconds(30)) == std::future_status::ready, "rank 0");
    }
    InFlight flying =
        d->begin(own.x_TD, {.ids_TK = own.ids_TK, .scores_TK = own.scores_TK, .most = 4});
    if (world.rank() == 0) sent.set_value();
    std::move(flying).finish();
    expect_equal(run(*d, own, {.most = 4}), want, "after");
  });
}

// The code of the error that `body` ends with.
std::optional<Code> code_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.code();
  }
  return {};
}

TEST(SymmetricDispatcher, F_RanksThatSayOtherNumbersAllGetE6001) {
  in_threads(3, [](World& world) {
    const ExpertPlacement p = contiguous(6, 3);
    const Case c{.tokens = {9, 12, 5}, .experts = 6};
    const Inputs own = part_of(draw(c), c, p, world.rank());
    const auto d = over(world, p, Mode::kFast);
    run(*d, own, {.most = 40});  // there is room now
    const int64_t most = world.rank() == 1 ? 31 : 30;
    EXPECT_EQ(code_of([&] { forward(*d, own, {.most = most}); }), Code::kRankLost);
  });
}

TEST(SymmetricDispatcher, F_ARankThatAsksWhereOthersKnowEndsAllAfterTheTimeout) {
  in_threads(
      2,
      [](World& world) {
        const ExpertPlacement p = contiguous(8, 2);
        const Case c{.tokens = {9, 12}};
        const Inputs own = part_of(draw(c), c, p, world.rank());
        const auto d = over(world, p, Mode::kFast);
        run(*d, own, {.most = 40});
        const int64_t most = world.rank() == 1 ? 0 : 12;
        EXPECT_EQ(code_of([&] { forward(*d, own, {.most = most}); }), Code::kRankLost);
      },
      /*seconds=*/3);
}

// As a pipeline does: several microbatches forward before the first goes back, of growing sizes.
TEST(SymmetricDispatcher, FourMicrobatchesInFlightEqualOneAfterAnother) {
  in_threads(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    for (const Mode mode : {Mode::kFast, Mode::kExact}) {
      const auto d = over(world, p, mode), serial = over(world, p, mode);
      std::vector<Forward> flying;
      std::vector<Results> want;
      std::vector<Inputs> own;
      for (uint64_t m = 0; m < 4; ++m) {
        const auto n = static_cast<int64_t>(m);
        const Case c{.tokens = {11 + 40 * n, 30 - 5 * n}, .seed = 20 + m};
        own.push_back(part_of(draw(c), c, p, world.rank()));
        flying.push_back(forward(*d, own.back()));
      }
      for (const Inputs& in : own) want.push_back(run(*serial, in));
      for (const size_t m : {0, 2, 1, 3}) {
        expect_equal(flying[m].backward(), want[m], to_text(mode) + std::to_string(m));
      }
    }
  });
}

// Inference, and rows that were sent and never asked for: the next calls find free slots.
TEST(SymmetricDispatcher, DroppedRowsHoldNothing) {
  in_threads(2, [](World& world) {
    const ExpertPlacement p = contiguous(8, 2);
    const Case c{.tokens = {3, 4}};
    const Inputs own = part_of(draw(c), c, p, world.rank());
    const auto d = over(world, p, Mode::kFast);
    for (int i = 0; i < 4 * SymmetricHeap::kSlots; ++i) {
      const at::NoGradGuard no_grad;
      d->begin(own.x_TD, {own.ids_TK, own.scores_TK});
      const DispatchedRows rows = d->begin(own.x_TD, {own.ids_TK, own.scores_TK}).finish();
      EXPECT_TRUE(rows.combine(rows.source_SD).defined());
    }
    expect_equal(run(*d, own), run(*all_to_all_dispatcher(world.all(), p, Mode::kFast), own),
                 "after");
  });
}

TEST(SymmetricDispatcher, RanksWithOtherSizesAreRefused) {
  in_threads(2, [](World& world) {
    const auto d = over(world, contiguous(8, 2), Mode::kFast);
    const at::Tensor x = at::zeros({3, 4 + world.rank()});
    EXPECT_THROW(d->begin(x, {at::zeros({3, 2}, at::kInt), at::zeros({3, 2})}), Error);
  });
}

TEST(SymmetricDispatcher, F_AKilledRankEndsTheOthersWithE6001) {
  const auto begin = std::chrono::steady_clock::now();
  in_ranks_that_end({0, -9, 0}, [](World& world) {
    const ExpertPlacement p = contiguous(6, 3);
    const Case c{.tokens = {9, 12, 5}, .experts = 6};
    const Inputs own = part_of(draw(c), c, p, world.rank());
    const auto d = over(world, p, Mode::kFast);
    run(*d, own);
    const Forward half = forward(*d, own);
    if (world.rank() == 1) ::raise(SIGKILL);
    try {
      half.backward();
      run(*d, own);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kRankLost) << e.what();
    }
    std::fflush(nullptr);
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);  // a world with a rank less does not close
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(SymmetricDispatcher, OfOneRankIsTheLocalOneAndNeedsNoCounts) {
  const Inputs in = draw({.tokens = {19}, .type = at::kBFloat16});
  for (const Mode mode : {Mode::kFast, Mode::kExact}) {
    const auto d = symmetric_dispatcher(std::make_shared<ProcessGroup>(), contiguous(8, 1), mode);
    expect_equal(run(*d, in), run(*local_dispatcher(8), in), to_text(mode));
    EXPECT_FALSE(d->info().host_reads);
    EXPECT_EQ(d->info().description,
              "symmetric, " + std::string(to_text(mode)) + ": 8 experts on rank 0");
  }
}

}  // namespace
}  // namespace troupe
