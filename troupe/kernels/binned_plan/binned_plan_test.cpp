#include "troupe/kernels/binned_plan/binned_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/number/round.h"
#include "troupe/testing/backend.h"
#include "troupe/testing/matrix.h"
#include "troupe/testing/routed_rows.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::RoutedRows;

enum class Form { kPlain, kPadded, kBinned };

struct Shape {
  int64_t tokens, choices, experts;
  Form form;
  int64_t capacity = 0;
  int64_t block = 128;
};

struct Problem {
  explicit Problem(const Shape& s)
      : shape(s),
        routed({.tokens = s.tokens, .choices = s.choices, .experts = s.experts}),
        slots(s.tokens * s.choices),
        indices(slots + 1),
        bins(s.experts),
        padded_bins(s.experts),
        rows(lay_out()),
        expert_offset(s.experts + 1),
        row_src(rows + 1),
        row_slot(rows + 1),
        slot_row(slots + 1),
        counts(s.experts) {
    for (auto* b : {&expert_offset, &row_src, &row_slot, &slot_row}) {
      std::fill_n(b->data(), b->size(), -77);
    }
  }
  int64_t lay_out() {
    std::vector<int32_t> order(slots);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t i, int32_t j) { return routed.ids[i] < routed.ids[j]; });
    std::copy(order.begin(), order.end(), indices.data());
    int64_t sum = 0, padded = 0;
    for (int64_t e = 0; e < shape.experts; ++e) {
      bins[e] = static_cast<int32_t>(sum += routed.counts[e]);
      padded_bins[e] = static_cast<int32_t>(padded += round_up(routed.counts[e], shape.block));
    }
    return shape.form == Form::kBinned  ? shape.experts * shape.capacity
           : shape.form == Form::kPlain ? sum
                                        : padded + 5;  // A bound above what there is.
  }
  BinnedPlan args() {
    return {.tokens = shape.tokens,
            .choices = shape.choices,
            .experts = shape.experts,
            .indices = indices.data(),
            .num_indices = slots,
            .bins = bins.data(),
            .padded_bins = shape.form == Form::kPadded ? padded_bins.data() : nullptr,
            .capacity = shape.form == Form::kBinned ? shape.capacity : 0,
            .rows = rows,
            .expert_offset = expert_offset.data(),
            .row_src = row_src.data(),
            .row_slot = row_slot.data(),
            .slot_row = slot_row.data(),
            .counts = counts.data()};
  }
  Shape shape;
  RoutedRows routed;
  int64_t slots;
  Buffer<int32_t> indices, bins, padded_bins;
  int64_t rows;
  Buffer<int32_t> expert_offset, row_src, row_slot, slot_row;
  Buffer<int64_t> counts;
};

struct Case {
  Backend backend;
  Shape shape;
};

class BinnedPlanTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
  void run(const BinnedPlan& a) const {
    testing::run(GetParam().backend, a, binned_plan_cpu, TROUPE_CUDA_PATH(binned_plan_cuda));
  }
};

TEST_P(BinnedPlanTest, AgreesWithTheReference) {
  Problem want(GetParam().shape), got(GetParam().shape);
  binned_plan_ref(want.args());
  run(got.args());
  const auto same = [](auto& a, auto& b, const char* what) {
    for (size_t i = 0; i < b.size(); ++i) ASSERT_EQ(a[i], b[i]) << what << " at " << i;
  };
  same(got.expert_offset, want.expert_offset, "expert_offset");
  same(got.row_slot, want.row_slot, "row_slot");
  same(got.row_src, want.row_src, "row_src");
  same(got.slot_row, want.slot_row, "slot_row");
  same(got.counts, want.counts, "counts");
}

// Needs no reference of ours: MegaBlocks' loop over the experts.
TEST_P(BinnedPlanTest, P4_RowsAreWhereMegaBlocksPutsThem) {
  Problem p(GetParam().shape);
  run(p.args());
  int64_t in = 0, kept = 0;
  for (int64_t e = 0; e < p.shape.experts; ++e) {
    const int64_t before = e == 0 ? 0 : p.bins[e - 1];
    const int64_t padded = e == 0 ? 0 : p.padded_bins[e - 1];
    int64_t row = p.shape.form == Form::kBinned   ? e * p.shape.capacity
                  : p.shape.form == Form::kPadded ? padded
                                                  : before;
    const int64_t room = p.shape.form == Form::kBinned ? p.shape.capacity : p.slots;
    for (int64_t j = 0; in < p.bins[e]; ++in, ++j) {
      const int32_t slot = p.indices[in];
      ASSERT_EQ(p.slot_row[slot], j < room ? row : -1) << "expert " << e << " slot " << slot;
      if (j >= room) continue;
      ASSERT_EQ(p.row_slot[row], slot);
      ASSERT_EQ(p.row_src[row++], slot / p.shape.choices);
      ++kept;
    }
  }
  EXPECT_EQ(std::count_if(p.row_slot.data(), p.row_slot.data() + p.rows,
                          [](int32_t slot) { return slot >= 0; }),
            kept);
}

TEST_P(BinnedPlanTest, IndicesOutOfRangeGetNoRow) {
  if (GetParam().shape.tokens == 0) GTEST_SKIP() << "no indices";
  Problem p(GetParam().shape);
  const int32_t lost = p.indices[0];
  p.indices[0] = static_cast<int32_t>(p.slots);
  run(p.args());
  EXPECT_EQ(p.slot_row[lost], -1);
  EXPECT_EQ(p.slot_row[p.slots], -77) << "wrote past the slots";
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (auto [T, E, K] : {std::array<int64_t, 3>{4, 2, 2},
                           {4, 2, 4},
                           {1024, 4, 1},
                           {1024, 64, 4},
                           {1024, 128, 2},
                           {7, 60, 3},
                           {0, 4, 2},
                           {1, 1, 1},
                           {16384, 4, 1}}) {
      cases.push_back({b, {T, K, E, Form::kPlain}});
      cases.push_back({b, {T, K, E, Form::kPadded}});
      cases.push_back({b, {T, K, E, Form::kBinned, std::max<int64_t>(1, T * K / E)}});
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, s] = info.param;
  const char* forms[] = {"plain", "padded", "binned"};
  return std::string(name(backend)) + "_t" + std::to_string(s.tokens) + "_k" +
         std::to_string(s.choices) + "_e" + std::to_string(s.experts) + "_" +
         forms[static_cast<int>(s.form)];
}
INSTANTIATE_TEST_SUITE_P(All, BinnedPlanTest, ::testing::ValuesIn(all_cases()), case_name);

TEST(BinnedPlan, RefusesContradictions) {
  Problem p({8, 2, 4, Form::kPadded});
  BinnedPlan a = p.args();
  a.capacity = 2;
  EXPECT_THROW(binned_plan_cpu(a, serial), Error);
  a = p.args();
  a.padded_bins = nullptr;
  a.capacity = a.rows;
  EXPECT_THROW(binned_plan_cpu(a, serial), Error);
}

}  // namespace
}  // namespace troupe
