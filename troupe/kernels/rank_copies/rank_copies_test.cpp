#include "troupe/kernels/rank_copies/rank_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;

struct Case {
  const char* what;
  int64_t choices, experts, ranks, owners_each;
  bool slices = false;
  int64_t first = 0, per = 1, targets = 0;
  bool indexed = false;
};

// The last elements of each output are there to see that nothing writes to them.
struct Problem {
  static constexpr int64_t kGuard = 5;
  static constexpr int32_t kMark = 0x5a5a5a5a;

  Problem(int64_t T, const Case& c, unsigned seed = 1)
      : list{.tokens = T,
             .choices = c.choices,
             .experts = c.experts,
             .owners_each = c.owners_each,
             .slices = c.slices,
             .first = c.first,
             .per = c.per,
             .targets = c.targets,
             .capacity = 77},
        ids(T * c.choices),
        index(T),
        owners(c.experts * c.owners_each),
        replicas(c.experts),
        row_target(T * c.choices * list.parts() + kGuard),
        copy_target(T * list.width() + kGuard),
        counts(3 * c.targets + kGuard) {
    std::mt19937 rng(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % n); };
    for (size_t i = 0; i < ids.size(); ++i) {  // some outside [0, E), some twice
      ids[i] = static_cast<int32_t>(below(c.experts + 3) - 1);
    }
    for (int64_t t = 0; t < T; ++t) index[t] = below(1000);
    for (int64_t e = 0; e < c.experts; ++e) {
      replicas[e] = 1 + below(c.owners_each);
      for (int64_t i = 0; i < c.owners_each; ++i) {
        owners[e * c.owners_each + i] =
            c.slices ? (e * c.owners_each + i) % c.ranks : below(c.ranks);
      }
    }
    for (Buffer<int32_t>* out : {&row_target, &copy_target, &counts}) {
      std::fill_n(out->data(), out->size(), kMark);
    }
    list.ids = ids.data();
    list.index = c.indexed ? index.data() : nullptr;
    list.owners = owners.data();
    list.replicas = replicas.data();
    list.row_target = row_target.data();
    list.copy_target = copy_target.data();
    list.counts = counts.data();
  }
  ListCopies list;
  Buffer<int32_t> ids;
  Buffer<int64_t> index, owners, replicas;
  Buffer<int32_t> row_target, copy_target, counts;
};

// Copies in the order of routing_plan, and as many slots again that hold none.
struct Telling {
  Telling(Problem& p, int64_t words, bool names, bool with_token)
      : scores(p.list.tokens * words),
        local(p.list.targets * p.list.experts),
        slot(0),
        token(0),
        message(0) {
    std::vector<int32_t> slots;
    const int64_t n = p.list.tokens * p.list.width();
    for (int32_t w = 0; w < p.list.targets; ++w) {
      for (int64_t s = 0; s < n; ++s) {
        if (p.copy_target[s] == w) slots.push_back(static_cast<int32_t>(s));
      }
    }
    slots.insert(slots.end(), slots.size() + 3, -1);
    const auto copies = static_cast<int64_t>(slots.size());
    slot = Buffer<int32_t>(slots.size());
    std::ranges::copy(slots, slot.data());
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<int32_t>(1000003 * i);
    for (size_t i = 0; i < local.size(); ++i) local[i] = static_cast<int32_t>(i % 97);
    args = {.tokens = p.list.tokens,
            .choices = p.list.choices,
            .parts = p.list.parts(),
            .experts = p.list.experts,
            .width = p.list.width(),
            .copies = copies,
            .words = words,
            .with_token = with_token,
            .ids = p.ids.data(),
            .scores = scores.data(),
            .row_target = p.row_target.data(),
            .copy_target = p.copy_target.data(),
            .copy_slot = slot.data(),
            .local = names ? local.data() : nullptr};
    token = Buffer<int64_t>(slots.size() + Problem::kGuard);
    message = Buffer<int32_t>(slots.size() * args.columns() + Problem::kGuard);
    std::fill_n(token.data(), token.size(), Problem::kMark);
    std::fill_n(message.data(), message.size(), Problem::kMark);
    args.token = token.data();
    args.message = message.data();
  }
  Buffer<int32_t> scores, local, slot;
  Buffer<int64_t> token;
  Buffer<int32_t> message;
  TellCopies args;
};

template <class T>
std::vector<T> all(Buffer<T>& x) {
  return {x.data(), x.data() + x.size()};
}

class RankCopiesTest : public ::testing::TestWithParam<std::tuple<Backend, Case>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  const Case& problem() const { return std::get<1>(GetParam()); }
  void SetUp() override {
    if (!testing::available(backend())) GTEST_SKIP() << "no GPU here";
  }
  void run(const ListCopies& args) const {
    testing::run(backend(), args, list_copies_cpu, TROUPE_CUDA_PATH(list_copies_cuda));
  }
  void run(const TellCopies& args) const {
    testing::run(backend(), args, tell_copies_cpu, TROUPE_CUDA_PATH(tell_copies_cuda));
  }
};

TEST_P(RankCopiesTest, ListsAreTheReferencesAndNothingFurtherIsWritten) {
  for (const int64_t tokens : {0, 1, 31, 700, 5000}) {
    Problem got(tokens, problem()), want(tokens, problem());
    run(got.list);
    list_copies_ref(want.list);
    EXPECT_EQ(all(got.row_target), all(want.row_target)) << tokens;
    EXPECT_EQ(all(got.copy_target), all(want.copy_target)) << tokens;
    EXPECT_EQ(all(got.counts), all(want.counts)) << tokens;
  }
}

TEST_P(RankCopiesTest, WhatIsToldIsTheReferences) {
  for (const int64_t tokens : {0, 1, 300}) {
    for (const int64_t words : {int64_t{0}, problem().choices, 2 * problem().choices}) {
      for (const bool names : {false, true}) {
        Problem p(tokens, problem());
        list_copies_ref(p.list);
        Telling got(p, words, names, !names), want(p, words, names, !names);
        run(got.args);
        tell_copies_ref(want.args);
        EXPECT_EQ(all(got.token), all(want.token)) << tokens << ' ' << words;
        EXPECT_EQ(all(got.message), all(want.message)) << tokens << ' ' << words;
      }
    }
  }
}

TEST_P(RankCopiesTest, EveryRowHasACopyAndCountsAddUp) {
  Problem p(400, problem());
  run(p.list);
  const int64_t rows = p.list.choices * p.list.parts(), width = p.list.width();
  std::vector<int32_t> copies(p.list.targets), to(p.list.targets);
  for (int64_t t = 0; t < 400; ++t) {
    const int32_t* const list = p.copy_target.data() + t * width;
    for (int64_t i = 0; i + 1 < width; ++i) {
      EXPECT_TRUE(list[i + 1] == -1 || (list[i] >= 0 && list[i] < list[i + 1])) << t;
    }
    for (int64_t i = 0; i < width; ++i) {
      if (list[i] >= 0) ++copies[list[i]];
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t target = p.row_target[t * rows + r];
      if (target < 0) continue;
      ++to[target];
      EXPECT_NE(std::find(list, list + width, target), list + width);
    }
  }
  for (int64_t w = 0; w < p.list.targets; ++w) {
    EXPECT_EQ(p.counts[3 * w], copies[w]);
    EXPECT_EQ(p.counts[3 * w + 1], to[w]);
    EXPECT_EQ(p.counts[3 * w + 2], 77);
  }
}

TEST(RankCopies, ATokenGoesOnceToARankOfSeveralOfItsExperts) {
  // Experts 0 and 1 on rank 0, 2 and 3 on rank 1.
  const std::vector<int64_t> owners{0, 0, 1, 1}, replicas{1, 1, 1, 1};
  const std::vector<int32_t> ids{1, 0, 3, 1, 2, -1};
  std::vector<int32_t> rows(6), copies(6), counts(6);
  list_copies_cpu({.tokens = 3,
                   .choices = 2,
                   .experts = 4,
                   .targets = 2,
                   .capacity = 9,
                   .ids = ids.data(),
                   .owners = owners.data(),
                   .replicas = replicas.data(),
                   .row_target = rows.data(),
                   .copy_target = copies.data(),
                   .counts = counts.data()},
                  serial);
  EXPECT_EQ(rows, (std::vector<int32_t>{0, 0, 1, 0, 1, -1}));
  EXPECT_EQ(copies, (std::vector<int32_t>{0, -1, 0, 1, 1, -1}));
  EXPECT_EQ(counts, (std::vector<int32_t>{2, 3, 9, 2, 2, 9}));
}

TEST(RankCopies, RefusesWhatItCannotMean) {
  const Case plain{
      .what = "", .choices = 2, .experts = 4, .ranks = 4, .owners_each = 1, .targets = 4};
  Problem p(6, plain);
  const auto refused = [&](auto&& spoil) {
    ListCopies a = p.list;
    spoil(a);
    EXPECT_THROW(list_copies_cpu(a, serial), Error);
  };
  refused([](ListCopies& a) { a.ids = nullptr; });
  refused([](ListCopies& a) { a.owners = nullptr; });
  refused([](ListCopies& a) { a.replicas = nullptr; });
  refused([](ListCopies& a) { a.counts = nullptr; });
  refused([](ListCopies& a) { a.per = 0; });
  refused([](ListCopies& a) { a.first = -1; });
  refused([](ListCopies& a) { a.capacity = int64_t{1} << 40; });
  refused([](ListCopies& a) { a.tokens = int64_t{1} << 31; });
  list_copies_ref(p.list);
  Telling t(p, 2, true, false);
  const auto refuses = [&](auto&& spoil) {
    TellCopies a = t.args;
    spoil(a);
    EXPECT_THROW(tell_copies_cpu(a, serial), Error);
  };
  refuses([](TellCopies& a) { a.scores = nullptr; });
  refuses([](TellCopies& a) { a.copy_slot = nullptr; });
  refuses([](TellCopies& a) { a.message = nullptr; });
  refuses([](TellCopies& a) { a.parts = 0; });
}

std::vector<Case> all_cases() {
  return {
      {.what = "alone", .choices = 2, .experts = 4, .ranks = 1, .owners_each = 1, .targets = 1},
      {.what = "two", .choices = 8, .experts = 64, .ranks = 2, .owners_each = 1, .targets = 2},
      {.what = "many", .choices = 8, .experts = 256, .ranks = 64, .owners_each = 1, .targets = 64},
      {.what = "replicas",
       .choices = 4,
       .experts = 8,
       .ranks = 5,
       .owners_each = 3,
       .targets = 5,
       .indexed = true},
      {.what = "slices",
       .choices = 2,
       .experts = 3,
       .ranks = 12,
       .owners_each = 4,
       .slices = true,
       .targets = 12},
      {.what = "nodes",
       .choices = 6,
       .experts = 32,
       .ranks = 16,
       .owners_each = 1,
       .per = 4,
       .targets = 4},
      {.what = "within",
       .choices = 6,
       .experts = 32,
       .ranks = 16,
       .owners_each = 2,
       .first = 8,
       .targets = 4,
       .indexed = true},
      {.what = "beyond_a_block",
       .choices = 2,
       .experts = 50,
       .ranks = 6000,
       .owners_each = 2,
       .targets = 6000},
  };
}

std::string case_name(const ::testing::TestParamInfo<RankCopiesTest::ParamType>& info) {
  return std::string(name(std::get<0>(info.param))) + "_" + std::get<1>(info.param).what;
}
INSTANTIATE_TEST_SUITE_P(All, RankCopiesTest,
                         ::testing::Combine(::testing::Values(Backend::kCpu, Backend::kCpuThreads,
                                                              Backend::kCuda),
                                            ::testing::ValuesIn(all_cases())),
                         case_name);

}  // namespace
}  // namespace troupe
