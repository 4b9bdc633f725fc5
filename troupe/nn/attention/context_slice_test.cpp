// Attention of ranks that have parts of the rows is that of one process, in f64, forward and
// backward; and what multi-token prediction reads of whole rows.
#include "troupe/nn/attention/context_slice.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/number/rng.h"
#include "troupe/nn/attention/ahead.h"
#include "troupe/nn/model/model.h"
#include "troupe/ops/attention/attention.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_threads;

constexpr int64_t kRows = 2, kTokens = 48;  // chunks of 12, 8 and 6 on 2, 3 and 4 ranks

// A document begins where the dealing says so: 0 nowhere, 1 at random, 2 at chunks' borders, 3 with
// every token.
std::vector<int32_t> documents_of(int form) {
  std::vector<int32_t> out;
  const Rng rng(11, stream_of("documents"));
  for (int64_t b = 0; b < kRows; ++b) {
    int32_t document = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      const bool begins = form == 1 ? rng.uniform(static_cast<uint64_t>(b * kTokens + t)) < 0.15
                                    : form == 3 || (form == 2 && t % 12 == 0);
      document += t > 0 && begins;
      out.push_back(document);
    }
  }
  return out;
}

std::vector<int64_t> lengths_of(const std::vector<int32_t>& documents) {
  std::vector<int64_t> out;
  for (size_t t = 0; t < documents.size(); ++t) {
    const bool begins = t % kTokens == 0 || documents[t] != documents[t - 1];
    if (begins) out.push_back(0);
    ++out.back();
  }
  return out;
}

struct Case {
  int64_t heads, kv_heads, d, e, window;
  bool sinks;
  int documents;
  bool ring = false;
};

struct Leaves {
  at::Tensor q, k, v, sinks;
};

// Everything of one rank's attention, over the plan's segments, or in a ring.
at::Tensor of_slice(const ContextSlice& slice, const KvExchange& exchange, bool ring,
                    const Leaves& own, AttentionForm form) {
  if (own.sinks.defined()) form.sinks_H = own.sinks;
  const at::Tensor own_kv = at::cat({own.k.flatten(1), own.v.flatten(1)}, 1);
  if (ring) {
    return RingAttention(exchange.group())
        .attention(own.q, own_kv, own.k.size(1), form, slice.ring(form.window));
  }
  const auto rows = slice.keys(form.window);
  form.segments = rows->segments;
  const at::Tensor kv = exchange.fetched(own_kv, rows);
  return joined_attention(own.q, kv, own.k.size(1), form);
}

void expect_one_process(const Case& c, int ranks, at::ScalarType type, double bound) {
  const int64_t T = kRows * kTokens;
  at::manual_seed(3);
  const Leaves whole{at::randn({T, c.heads, c.d}).to(type).requires_grad_(),
                     at::randn({T, c.kv_heads, c.d}).to(type).requires_grad_(),
                     at::randn({T, c.kv_heads, c.e}).to(type).requires_grad_(),
                     c.sinks ? at::randn({c.heads}).to(type).requires_grad_() : at::Tensor()};
  const std::vector<int32_t> documents = documents_of(c.documents);
  AttentionForm form{.scale = 0.4, .window = c.window};
  AttentionForm all = form;
  all.lengths = lengths_of(documents);
  if (c.sinks) all.sinks_H = whole.sinks;
  const at::Tensor want = attention(whole.q, whole.k, whole.v, all);
  const at::Tensor grad = at::randn(want.sizes()).to(type);
  want.backward(grad);
  std::mutex mutex;
  at::Tensor sinks_grad = c.sinks ? at::zeros({c.heads}, type) : at::Tensor();
  in_threads(ranks, [&](World& world) {
    const ContextSlice slice(TokenChunks::zigzag(ranks, kTokens), world.rank(), {kRows, documents},
                             at::kCPU);
    const auto part = [&](const at::Tensor& x) {
      return x.detach().index_select(0, slice.places());
    };
    const KvExchange exchange(world.all());
    std::vector<at::Tensor> first;
    for (int turn = 0; turn < 2; ++turn) {
      const Leaves own{part(whole.q).requires_grad_(), part(whole.k).requires_grad_(),
                       part(whole.v).requires_grad_(),
                       c.sinks ? whole.sinks.detach().clone().requires_grad_() : at::Tensor()};
      const at::Tensor got = of_slice(slice, exchange, c.ring, own, form);
      got.backward(part(grad));
      const std::vector<at::Tensor> results = {got.detach(), own.q.grad(), own.k.grad(),
                                               own.v.grad()};
      if (turn == 1) {  // twice the same bits
        for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(at::equal(results[i], first[i]));
        continue;
      }
      first = results;
      const at::Tensor wants[] = {want, whole.q.grad(), whole.k.grad(), whole.v.grad()};
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_TRUE(at::allclose(results[i], part(wants[i]), bound, bound))
            << "result " << i << " of rank " << world.rank() << ", off by "
            << (results[i] - part(wants[i])).abs().max().item<double>();
      }
      if (!c.sinks) continue;
      const std::lock_guard lock(mutex);
      sinks_grad += own.sinks.grad();
    }
  });
  if (!c.sinks) return;
  EXPECT_TRUE(at::allclose(sinks_grad, whole.sinks.grad(), bound, 10 * bound));
}

TEST(ContextSlice, CX6_CX10_AttentionIsThatOfOneProcess) {
  for (const int ranks : {2, 3, 4}) {
    const int64_t chunk = kTokens / (2 * ranks);
    for (int documents = 0; documents < 4; ++documents) {
      for (const int64_t window : {int64_t{0}, chunk - 1, chunk, chunk + 5, int64_t{1}}) {
        for (const bool ring : {false, true}) {
          const Case c{4, 2, 6, 6, window, window != 0, documents, ring};
          SCOPED_TRACE(std::to_string(ranks) + " ranks, window " + std::to_string(window) +
                       ", documents " + std::to_string(documents) + (ring ? ", ring" : ""));
          expect_one_process(c, ranks, at::kDouble, 1e-12);
        }
      }
    }
  }
}

TEST(ContextSlice, CX6_HeadsOfAllWidthsAndTypes) {
  const Case wide{3, 3, 12, 8, 0, true, 1}, one{4, 1, 4, 4, 0, false, 0};
  Case wide_ring = wide, one_ring = one;
  wide_ring.ring = one_ring.ring = true;
  for (const int ranks : {2, 4}) {
    for (const Case& c : {wide, one, wide_ring, one_ring}) {
      expect_one_process(c, ranks, at::kDouble, 1e-12);
      expect_one_process(c, ranks, at::kFloat, 2e-5);
    }
  }
}

Batch whole_batch() {
  at::manual_seed(5);
  const at::Tensor ids = at::randint(100, {kRows, kTokens + 1}, at::kLong);
  Batch out{.ids_BS = ids.narrow(1, 0, kTokens).contiguous(),
            .labels_BS = ids.narrow(1, 1, kTokens).contiguous()};
  out.weights_BS = at::randint(1, 4, {kRows, kTokens}, at::kFloat);
  out.documents_BS = at::tensor(documents_of(1), at::kInt).view({kRows, kTokens});
  out.valid_BS = out.documents_BS.ge(1);
  return out;
}

// The target of position i is that of i + d, where that is in the row and the document.
TEST(ContextSlice, CX3_TokensAheadStayInTheirDocument) {
  const Batch whole = whole_batch();
  const std::vector<AheadTokens> ahead = ahead_of(whole, 2);
  for (int64_t d = 1; d <= 2; ++d) {
    const AheadTokens& a = ahead[static_cast<size_t>(d - 1)];
    for (int64_t b = 0; b < kRows; ++b) {
      for (int64_t t = 0; t < kTokens; ++t) {
        const bool counts = t + d < kTokens && whole.documents_BS[b][t].item<int32_t>() ==
                                                   whole.documents_BS[b][t + d].item<int32_t>();
        const int64_t label = a.labels_BS[b][t].item<int64_t>();
        EXPECT_EQ(label, counts ? whole.labels_BS[b][t + d].item<int64_t>() : kIgnoredLabel);
        if (!counts) continue;
        EXPECT_EQ(a.ids_BS[b][t].item<int64_t>(), whole.ids_BS[b][t + d].item<int64_t>());
        EXPECT_EQ(a.weights_BS[b][t].item<float>(), whole.weights_BS[b][t + d].item<float>());
      }
    }
  }
}

// Rows of ranks that share a microbatch, tensor ranks fastest, come into the order of the batch.
TEST(ContextSlice, OrderPutsGatheredRowsInTheirPlaces) {
  constexpr int64_t kContext = 2, kTensor = 2;
  const TokenChunks chunks = TokenChunks::zigzag(kContext, kTokens);
  const ContextSlice slice(chunks, 1, {kRows, {}}, at::kCPU);
  const TokenSharding tensor = TokenSharding::of_sizes(kTensor);
  const int64_t most = slice.most(tensor);
  std::vector<at::Tensor> gathered;
  for (int64_t c = 0; c < kContext; ++c) {
    const at::Tensor own = at::tensor(own_places(chunks, c, kRows), at::kLong);
    for (int64_t r = 0; r < kTensor; ++r) {
      const TokenRange range = tensor.of_rank(r, own.size(0));
      gathered.push_back(padded_rows(own.narrow(0, range.from, range.count), most, -1));
    }
  }
  EXPECT_TRUE(at::equal(at::cat(gathered).index_select(0, slice.order(tensor)),
                        at::arange(kRows * kTokens)));
}

TEST(ContextSlice, RefusesWhatIsNotWhole) {
  Batch part = whole_batch();
  part.slice = std::make_shared<const ContextSlice>(TokenChunks::zigzag(2, kTokens), 0,
                                                    WholeRows{kRows, {}}, at::kCPU);
  EXPECT_THROW(ahead_of(part, 1), Error);
}

}  // namespace
}  // namespace troupe
