// Plans against brute force: which keys does any query of a rank see, and where do they come from.
#include "troupe/distributed/mesh/key_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>

namespace troupe {
namespace {

struct Case {
  int64_t ranks, rows, tokens, window;
  std::vector<int32_t> documents = {};
};

int64_t document_begin(const Case& c, int64_t row, int64_t token) {
  if (c.documents.empty()) return 0;
  const auto of = [&](int64_t t) { return c.documents[static_cast<size_t>(row * c.tokens + t)]; };
  while (token > 0 && of(token - 1) == of(token)) --token;
  return token;
}

bool sees(const Case& c, int64_t row, int64_t query, int64_t key) {
  return key <= query && key >= document_begin(c, row, query) &&
         (c.window == 0 || key > query - c.window);
}

// For each rank, the global positions of its keys, as an exchange by the plans brings them.
std::vector<std::vector<int64_t>> exchanged(const Case& c, const TokenChunks& chunks,
                                            const std::vector<KeyPlan>& plans) {
  std::vector<std::vector<int64_t>> out;
  for (int64_t r = 0; r < c.ranks; ++r) {
    std::vector<int64_t> rows = own_places(chunks, r, c.rows);
    for (int64_t from = 0; from < c.ranks; ++from) {
      const KeyPlan& sender = plans[static_cast<size_t>(from)];
      const std::vector<int64_t> own = own_places(chunks, from, c.rows);
      int64_t at = 0;
      for (int64_t to = 0; to < r; ++to) at += sender.to_rows[static_cast<size_t>(to)];
      const int64_t n = sender.to_rows[static_cast<size_t>(r)];
      EXPECT_EQ(n, plans[static_cast<size_t>(r)].from_rows[static_cast<size_t>(from)]);
      for (int64_t i = 0; i < n; ++i) {
        rows.push_back(own[static_cast<size_t>(sender.sent[static_cast<size_t>(at + i)])]);
      }
    }
    std::vector<int64_t>& keys = out.emplace_back();
    for (const int64_t from : plans[static_cast<size_t>(r)].order) {
      keys.push_back(rows.at(static_cast<size_t>(from)));
    }
    EXPECT_EQ(keys.size(), rows.size());  // no row came in vain
  }
  return out;
}

// Each query's keys by the segments are those that it sees, and the rank has no others.
void expect_right(const Case& c) {
  const TokenChunks chunks = TokenChunks::zigzag(c.ranks, c.tokens);
  const WholeRows whole{c.rows, c.documents};
  std::vector<KeyPlan> plans;
  for (int64_t r = 0; r < c.ranks; ++r) plans.push_back(key_plan(chunks, r, whole, c.window));
  const auto keys = exchanged(c, chunks, plans);
  for (int64_t r = 0; r < c.ranks; ++r) {
    const std::vector<int64_t>& here = keys[static_cast<size_t>(r)];
    ASSERT_TRUE(std::ranges::is_sorted(here));
    std::set<int64_t> needed;
    const std::vector<int64_t> own = own_places(chunks, r, c.rows);
    int64_t next = 0;
    for (const AttentionSegment& s : plans[static_cast<size_t>(r)].segments) {
      ASSERT_EQ(s.q, next);
      next += s.rows;
      for (int64_t i = 0; i < s.rows; ++i) {
        const int64_t place = own[static_cast<size_t>(s.q + i)], row = place / c.tokens;
        std::vector<int64_t> got, want;
        for (int64_t j = 0; j <= s.past + i; ++j) {
          if (c.window > 0 && j <= s.past + i - c.window) continue;
          got.push_back(here.at(static_cast<size_t>(s.k + j)));
        }
        for (int64_t key = 0; key < c.tokens; ++key) {
          if (sees(c, row, place % c.tokens, key)) want.push_back(row * c.tokens + key);
        }
        ASSERT_EQ(got, want) << "rank " << r << ", token " << place;
        needed.insert(want.begin(), want.end());
      }
    }
    EXPECT_EQ(next, std::ssize(own));
    EXPECT_EQ(std::vector<int64_t>(needed.begin(), needed.end()), here) << "rank " << r;
  }
}

TEST(KeyPlan, CX6_WholeRowsAndWindows) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t chunk : {1, 3}) {
      for (const int64_t window : {int64_t{0}, int64_t{1}, chunk, chunk + 1, 5 * chunk}) {
        expect_right({ranks, 2, 2 * ranks * chunk, window, {}});
      }
    }
  }
}

TEST(KeyPlan, CX6_RandomDocuments) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    Case c{.ranks = static_cast<int64_t>(1 + random() % 5), .rows = 2, .tokens = 0, .window = 0};
    c.tokens = 2 * c.ranks * static_cast<int64_t>(1 + random() % 4);
    if (random() % 2 == 0) c.window = static_cast<int64_t>(1 + random() % 7);
    const unsigned longest = 1 + random() % 9;
    for (int64_t row = 0; row < c.rows; ++row) {
      int32_t document = 0;
      for (int64_t t = 0; t < c.tokens; ++t) {
        c.documents.push_back(document);
        document += random() % longest == 0;
      }
    }
    ASSERT_NO_FATAL_FAILURE(expect_right(c)) << i;
  }
}

TEST(KeyPlan, CX6_DocumentsAtChunksBordersSendNothing) {
  std::vector<int32_t> documents = {};
  for (int32_t t = 0; t < 16; ++t) documents.push_back(t / 4);
  const TokenChunks chunks = TokenChunks::zigzag(2, 16);
  for (int64_t r = 0; r < 2; ++r) {
    const KeyPlan plan = key_plan(chunks, r, {1, documents}, 0);
    EXPECT_EQ(plan.from_rows, (std::vector<int64_t>{0, 0}));
    EXPECT_TRUE(plan.sent.empty());
  }
}

TEST(KeyPlan, CX6_AWindowBringsItsRowsAlone) {
  // Rank 0 of 4 has tokens 0 .. 7 and 56 .. 63: of a window of 4 it lacks 53, 54 and 55.
  const KeyPlan plan = key_plan(TokenChunks::zigzag(4, 64), 0, {1, {}}, 4);
  EXPECT_EQ(plan.from_rows, (std::vector<int64_t>{0, 3, 0, 0}));
  EXPECT_EQ(plan.segments, (std::vector<AttentionSegment>{{0, 8, 0, 0}, {8, 8, 8, 3}}));
}

TEST(KeyPlan, NoRows) {
  const KeyPlan plan = key_plan(TokenChunks::zigzag(2, 16), 1, {0, {}}, 0);
  EXPECT_TRUE(plan.segments.empty() && plan.order.empty() && plan.sent.empty());
}

}  // namespace
}  // namespace troupe
