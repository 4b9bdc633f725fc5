// Rounds against brute force: each query sees each of its keys in exactly one round, and what a
// rank sends is what the other expects.
#include "troupe/distributed/mesh/ring_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "troupe/distributed/mesh/key_plan.h"

namespace troupe {
namespace {

struct Case {
  int64_t rows, window;
  std::vector<int32_t> documents = {};
};

int64_t document_begin(const Case& c, int64_t S, int64_t row, int64_t token) {
  if (c.documents.empty()) return 0;
  const auto of = [&](int64_t t) { return c.documents[static_cast<size_t>(row * S + t)]; };
  while (token > 0 && of(token - 1) == of(token)) --token;
  return token;
}

using Plans = std::vector<std::vector<RingRound>>;

// The places among all tokens of the rows that rank r has in round i.
std::vector<int64_t> arrived(const Case& c, const TokenChunks& chunks, const Plans& plans,
                             int64_t r, size_t i) {
  const RingRound& round = plans[static_cast<size_t>(r)][i];
  const std::vector<int64_t> own = own_places(chunks, round.from, c.rows);
  if (i == 0) return own;
  const RingRound& there = plans[static_cast<size_t>(round.from)][i];
  EXPECT_EQ(there.to, r);
  std::vector<int64_t> out;
  for (const int64_t token : there.sent) out.push_back(own.at(static_cast<size_t>(token)));
  EXPECT_TRUE(std::ranges::is_sorted(there.sent));
  return out;
}

void expect_right(const Case& c, const TokenChunks& chunks) {
  const int64_t S = chunks.tokens();
  Plans plans;
  for (int64_t r = 0; r < chunks.ranks(); ++r) {
    plans.push_back(ring_plan(chunks, r, {c.rows, c.documents}, c.window));
  }
  for (int64_t r = 0; r < chunks.ranks(); ++r) {
    const std::vector<int64_t> own = own_places(chunks, r, c.rows);
    std::vector<std::multiset<int64_t>> seen(own.size());
    for (size_t i = 0; i < plans[static_cast<size_t>(r)].size(); ++i) {
      const RingRound& round = plans[static_cast<size_t>(r)][i];
      const std::vector<int64_t> keys = arrived(c, chunks, plans, r, i);
      ASSERT_EQ(std::ssize(keys), round.keys);
      std::set<int64_t> used;
      for (const auto& segments : round.passes) {
        int64_t query = 0, key = 0;
        for (const AttentionSegment& s : segments) {
          ASSERT_TRUE(s.q >= query && s.k >= key && s.past >= 0);
          query = s.q + s.rows;
          key = s.k;
          for (int64_t q = 0; q < s.rows; ++q) {
            const SeenKeys own_keys = seen_keys(s, q, c.window);
            for (int64_t j = own_keys.from; j < own_keys.to; ++j) {
              seen[static_cast<size_t>(s.q + q)].insert(keys.at(static_cast<size_t>(s.k + j)));
            }
          }
          for (int64_t j = 0; j < s.keys; ++j) used.insert(keys.at(static_cast<size_t>(s.k + j)));
        }
      }
      if (i > 0) {
        EXPECT_EQ(std::ssize(used), round.keys) << "rows came in vain";
      }
    }
    for (size_t q = 0; q < own.size(); ++q) {
      const int64_t row = own[q] / S, token = own[q] % S;
      std::multiset<int64_t> want;
      for (int64_t key = document_begin(c, S, row, token); key <= token; ++key) {
        if (c.window == 0 || key > token - c.window) want.insert(row * S + key);
      }
      ASSERT_EQ(seen[q], want) << "rank " << r << ", token " << own[q];
    }
  }
}

TEST(RingPlan, CX8_WholeRowsAndWindows) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t chunk : {1, 3}) {
      for (const int64_t window : {int64_t{0}, int64_t{1}, chunk, chunk + 1, 5 * chunk}) {
        expect_right({2, window, {}}, TokenChunks::zigzag(ranks, 2 * ranks * chunk));
      }
    }
  }
}

TEST(RingPlan, CX8_RandomDocuments) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    const auto ranks = static_cast<int64_t>(1 + random() % 5);
    const int64_t S = 2 * ranks * static_cast<int64_t>(1 + random() % 4);
    Case c{.rows = 2, .window = 0};
    if (random() % 2 == 0) c.window = static_cast<int64_t>(1 + random() % 7);
    const unsigned longest = 1 + random() % 9;
    for (int64_t row = 0; row < c.rows; ++row) {
      int32_t document = 0;
      for (int64_t t = 0; t < S; ++t) {
        c.documents.push_back(document);
        document += random() % longest == 0;
      }
    }
    ASSERT_NO_FATAL_FAILURE(expect_right(c, TokenChunks::zigzag(ranks, S))) << i;
  }
}

TEST(RingPlan, CX8_RoundsAreEvenUnderZigzag) {
  const int64_t ranks = 4, S = 64;
  for (int64_t r = 0; r < ranks; ++r) {
    for (const RingRound& round : ring_plan(TokenChunks::zigzag(ranks, S), r, {1, {}}, 0)) {
      int64_t pairs = 0;
      for (const auto& segments : round.passes) {
        for (const AttentionSegment& s : segments) {
          for (int64_t q = 0; q < s.rows; ++q) pairs += seen_keys(s, q, 0).to;
        }
      }
      const int64_t chunk = S / (2 * ranks);
      // Half of all pairs of another rank's keys; of own ones a chunk's and two triangles.
      const int64_t triangles = chunk * (chunk + 1);
      EXPECT_EQ(pairs, round.from == r ? chunk * chunk + triangles : 2 * chunk * chunk);
    }
  }
}

}  // namespace
}  // namespace troupe
