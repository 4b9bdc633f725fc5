// A rank's part of rows has, at each of its tokens, what the whole rows have there.
#include "troupe/data/tokens/row_part.h"

#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/core/number/rng.h"

namespace troupe {
namespace {

constexpr int64_t kRows = 3, kTokens = 24;

// Documents begin at random; the last tokens of row 1 are padding, and all of row 2.
TokenBatch packed() {
  TokenBatch out{.B = kRows, .S = kTokens};
  const Rng rng(11, stream_of("rows"));
  for (int64_t b = 0; b < kRows; ++b) {
    int32_t document = 0, position = 0;
    for (int64_t t = 0; t <= kTokens; ++t) {
      const auto n = static_cast<uint64_t>(b * (kTokens + 1) + t);
      out.ids.push_back(static_cast<int32_t>(rng.uniform(n) * 100));
      if (t == kTokens) break;
      const bool pads = b == 2 || (b == 1 && t >= 20);
      const bool begins = t > 0 && rng.uniform(1000 + n) < 0.2;
      document += begins;
      position = begins || t == 0 ? 0 : position + 1;
      out.documents.push_back(pads ? -1 : document);
      out.positions.push_back(pads ? 0 : position);
      out.weights.push_back(pads ? 0 : static_cast<float>(1 + n % 3));
    }
    out.sources.push_back(0);
  }
  return out;
}

size_t place(int64_t b, int64_t t) {
  return static_cast<size_t>(b * kTokens + t);
}

TEST(RowPart, CX3_CX4_TokensOfAPartAreThoseOfTheWholeRows) {
  const TokenBatch whole = packed();
  const RowDocuments documents = row_documents(whole);
  ASSERT_TRUE(documents.padded);
  const std::vector<int64_t> tokens = {0, 1, 5, 6, 7, 19, 20, 23};
  const RowPart part = part_of(whole, 0, kRows, documents, tokens, 2);
  ASSERT_EQ(part.ahead.size(), 2U);
  size_t i = 0;
  for (int64_t b = 0; b < kRows; ++b) {
    for (const int64_t t : tokens) {
      SCOPED_TRACE("row " + std::to_string(b) + ", token " + std::to_string(t));
      const std::span<const int32_t> ids = whole.row(b);
      EXPECT_EQ(part.ids[i], ids[static_cast<size_t>(t)]);
      EXPECT_EQ(part.labels[i], ids[static_cast<size_t>(t + 1)]);
      EXPECT_EQ(part.weights[i], whole.weights[place(b, t)]);
      EXPECT_EQ(part.positions[i], whole.positions[place(b, t)]);
      EXPECT_EQ((*part.valid)[i], whole.documents[place(b, t)] >= 0);
      for (int64_t d = 1; d <= 2; ++d) {
        const AheadPart& ahead = part.ahead[static_cast<size_t>(d - 1)];
        const bool counts =
            t + d < kTokens && whole.documents[place(b, t)] == whole.documents[place(b, t + d)];
        EXPECT_EQ(ahead.labels[i], counts ? ids[static_cast<size_t>(t + d + 1)] : -100);
        EXPECT_EQ(ahead.ids[i], ids[static_cast<size_t>((t + d) % kTokens)]);
        EXPECT_EQ(ahead.weights[i], whole.weights[place(b, (t + d) % kTokens)]);
      }
      ++i;
    }
  }
  EXPECT_EQ(part.ids.size(), i);
}

TEST(RowPart, RowsOfOneDocumentHaveNoNumbersAndPlacesForPositions) {
  TokenBatch whole = packed();
  whole.documents.assign(whole.documents.size(), 0);
  const RowDocuments documents = row_documents(whole);
  EXPECT_TRUE(documents.numbers.empty());
  const RowPart part = part_of(whole, 1, 2, documents, {3, 11}, 0);
  EXPECT_EQ(part.positions, (std::vector<int32_t>{3, 11, 3, 11}));
  EXPECT_EQ(part.ids[0], whole.row(1)[3]);
  EXPECT_FALSE(part.valid.has_value());
  EXPECT_TRUE(part.ahead.empty());
}

TEST(RowPart, PaddingIsOneMoreDocumentBehindTheLast) {
  const TokenBatch whole = packed();
  const std::vector<int32_t> numbers = row_documents(whole).numbers;
  for (int64_t b = 0; b < kRows; ++b) {
    int32_t last = -1;  // of a row without tokens
    for (int64_t t = 0; t < kTokens; ++t) {
      const int32_t document = whole.documents[place(b, t)];
      EXPECT_EQ(numbers[place(b, t)], document >= 0 ? document : last + 1) << b << ", " << t;
      if (document >= 0) last = document;
    }
  }
}

TEST(RowPart, PaddedRowsKeepWhatTheyHad) {
  const TokenBatch whole = packed(), wider = padded_rows(whole, 4);
  EXPECT_EQ(wider.S, kTokens + 4);
  EXPECT_EQ(wider.ids.size(), static_cast<size_t>(kRows * (kTokens + 5)));
  for (int64_t b = 0; b < kRows; ++b) {
    EXPECT_TRUE(std::ranges::equal(wider.row(b).first(kTokens + 1), whole.row(b)));
    for (int64_t t = kTokens; t < wider.S; ++t) {
      EXPECT_EQ(wider.documents[static_cast<size_t>(b * wider.S + t)], -1);
      EXPECT_EQ(wider.weights[static_cast<size_t>(b * wider.S + t)], 0);
    }
  }
}

TEST(RowPart, RefusesRowsThatTheBatchLacks) {
  const TokenBatch whole = packed();
  EXPECT_THROW(part_of(whole, 2, 2, row_documents(whole), {0}, 0), Error);
  EXPECT_THROW(part_of(whole, 0, 1, {.numbers = {0}}, {0}, 0), Error);
}

}  // namespace
}  // namespace troupe
