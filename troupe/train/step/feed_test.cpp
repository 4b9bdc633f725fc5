// The microbatches of ranks that have parts of the rows are those of whole rows, cut.
#include "troupe/train/step/feed.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/data/tokens/row_part.h"
#include "troupe/nn/attention/ahead.h"
#include "troupe/nn/attention/packing.h"

namespace troupe {
namespace {

constexpr int64_t kRows = 4, kTokens = 30;

// Row b has documents of 5 + b tokens; of row 3 nothing is left but padding.
TokenBatch packed() {
  TokenBatch out{.first_sample = 8, .B = kRows, .S = kTokens};
  for (int64_t b = 0; b < kRows; ++b) {
    for (int64_t t = 0; t <= kTokens; ++t) {
      out.ids.push_back(static_cast<int32_t>((b * 31 + t * 7) % 64));
      if (t == kTokens) break;
      const int64_t length = 5 + b;
      out.documents.push_back(b == 3 ? -1 : static_cast<int32_t>(t / length));
      out.positions.push_back(b == 3 ? 0 : static_cast<int32_t>(t % length));
      out.weights.push_back(b == 3 ? 0 : static_cast<float>(1 + t % 2));
    }
    out.sources.push_back(0);
  }
  return out;
}

TEST(Feed, CX3_PartsOfRowsAreThoseOfWholeMicrobatches) {
  constexpr int64_t kMicro = 2, kSteps = 3;  // two microbatches and one without rows
  const TokenBatch batch = packed();
  for (const int64_t ranks : {2, 4}) {
    for (const Dealing dealing : {Dealing::kZigzag, Dealing::kDocuments}) {
      const TokenBatch rows = padded_rows(batch, padded_tokens(ranks, kTokens) - kTokens);
      const Feed whole = make_feed(rows, kMicro, c10::kCPU, kSteps);
      std::vector<at::Tensor> seen(kSteps);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const Feed part = make_feed(batch, kMicro, c10::kCPU, kSteps,
                                    {.ranks = ranks, .rank = rank, .depth = 2, .dealing = dealing});
        EXPECT_EQ(part.tokens, kRows * kTokens);
        EXPECT_EQ(part.weight_sum, whole.weight_sum);
        EXPECT_EQ(part.weights, whole.weights);
        ASSERT_EQ(part.microbatches.size(), static_cast<size_t>(kSteps));
        for (size_t m = 0; m < part.microbatches.size(); ++m) {
          const Batch& own = part.microbatches[m];
          const Batch& all = whole.microbatches[m];
          const at::Tensor places = own.slice->places();
          const auto expect = [&](const at::Tensor& got, const at::Tensor& want) {
            const at::Tensor at_places = want.reshape({-1}).index_select(0, places);
            EXPECT_TRUE(at::equal(got, at_places.view(got.sizes())))
                << ranks << " ranks, rank " << rank << ", microbatch " << m;
          };
          expect(own.ids_BS, all.ids_BS);
          expect(own.labels_BS, all.labels_BS);
          expect(own.weights_BS, all.weights_BS);
          expect(own.positions_BS, all.positions_BS);
          expect(own.valid_BS, all.valid_BS);
          EXPECT_EQ(own.slice->lengths(), packing_of(all.documents_BS, {}, c10::kCPU).lengths);
          const std::vector<AheadTokens> ahead = ahead_of(all, 2);
          ASSERT_EQ(own.ahead.size(), ahead.size());
          for (size_t d = 0; d < ahead.size(); ++d) {
            expect(own.ahead[d].ids_BS, ahead[d].ids_BS);
            expect(own.ahead[d].labels_BS, ahead[d].labels_BS);
            expect(own.ahead[d].weights_BS, ahead[d].weights_BS);
          }
          if (!seen[m].defined()) seen[m] = at::zeros({all.ids_BS.numel()}, at::kLong);
          seen[m].index_add_(0, places, at::ones_like(places));
        }
      }
      for (const at::Tensor& times : seen) EXPECT_TRUE(times.eq(1).all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace troupe
