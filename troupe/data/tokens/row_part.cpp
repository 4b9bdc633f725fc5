#include "troupe/data/tokens/row_part.h"

#include <algorithm>
#include <cstddef>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr int32_t kNoLabel = -100;

// Reads places of whole rows into parts of them.
class Cut {
 public:
  Cut(const TokenBatch& whole, int64_t first, int64_t count, const std::vector<int64_t>& tokens)
      : S_(whole.S), first_(first), count_(count), tokens_(tokens) {}

  // value(row, token) of each token of the part, rows one behind another.
  template <class T, class F>
  std::vector<T> of(const F& value) const {
    std::vector<T> out;
    out.reserve(static_cast<size_t>(count_) * tokens_.size());
    for (int64_t b = first_; b < first_ + count_; ++b) {
      for (const int64_t t : tokens_) out.push_back(value(b, t));
    }
    return out;
  }
  // Of values [B, S].
  template <class T>
  std::vector<T> of(const std::vector<T>& values) const {
    return of<T>([&](int64_t b, int64_t t) { return values[static_cast<size_t>(b * S_ + t)]; });
  }

 private:
  int64_t S_, first_, count_;
  const std::vector<int64_t>& tokens_;
};

}  // namespace

TokenBatch padded_rows(const TokenBatch& batch, int64_t more) {
  if (more == 0) return batch;
  TokenBatch out = batch;
  out.S = batch.S + more;
  const auto rows = [&](auto& to, const auto& from, int64_t width, auto fill) {
    to.clear();
    for (int64_t b = 0; b < batch.B; ++b) {
      to.insert(to.end(), from.begin() + b * width, from.begin() + (b + 1) * width);
      to.insert(to.end(), static_cast<size_t>(more), fill);
    }
  };
  rows(out.ids, batch.ids, batch.S + 1, int32_t{0});
  rows(out.weights, batch.weights, batch.S, 0.0F);
  rows(out.documents, batch.documents, batch.S, int32_t{-1});
  rows(out.positions, batch.positions, batch.S, int32_t{0});
  return out;
}

RowDocuments row_documents(const TokenBatch& batch) {
  RowDocuments out{.padded = std::ranges::find(batch.documents, -1) != batch.documents.end()};
  const bool several = std::ranges::any_of(batch.documents, [](int32_t d) { return d > 0; });
  if (!several && !out.padded) return out;
  out.numbers = batch.documents;
  int32_t last = 0;
  for (size_t t = 0; t < out.numbers.size(); ++t) {
    int32_t& number = out.numbers[t];
    last = t % static_cast<size_t>(batch.S) == 0 ? number : std::max(last, number);
    if (number < 0) number = last + 1;
  }
  return out;
}

std::vector<uint8_t> valid_tokens(const TokenBatch& batch) {
  std::vector<uint8_t> out;
  out.reserve(batch.documents.size());
  for (const int32_t document : batch.documents) out.push_back(document >= 0);
  return out;
}

RowPart part_of(const TokenBatch& whole, int64_t first, int64_t count,
                const RowDocuments& documents, const std::vector<int64_t>& tokens, int64_t depth) {
  const int64_t S = whole.S;
  const std::vector<int32_t>& numbers = documents.numbers;
  TROUPE_CHECK(0 <= first && first + count <= whole.B, "rows", first, "and", count, "more of",
               whole.B);
  TROUPE_CHECK(numbers.empty() || std::ssize(numbers) == whole.B * S, numbers.size(),
               "documents of", whole.B, "rows of", S, "tokens");
  const auto id = [&](int64_t b, int64_t t) {
    return whole.ids[static_cast<size_t>(b * (S + 1) + t)];
  };
  const auto at = [&](int64_t b, int64_t t) { return static_cast<size_t>(b * S + t); };
  const Cut cut(whole, first, count, tokens);
  RowPart out{.B = count, .n = std::ssize(tokens)};
  out.ids = cut.of<int32_t>(id);
  out.labels = cut.of<int32_t>([&](int64_t b, int64_t t) { return id(b, t + 1); });
  out.weights = cut.of(whole.weights);
  out.positions = numbers.empty()
                      ? cut.of<int32_t>([](int64_t, int64_t t) { return static_cast<int32_t>(t); })
                      : cut.of(whole.positions);
  if (documents.padded) {
    out.valid =
        cut.of<uint8_t>([&](int64_t b, int64_t t) { return whole.documents[at(b, t)] >= 0; });
  }
  for (int64_t d = 1; d <= depth; ++d) {
    const auto counts = [&](int64_t b, int64_t t) {
      return t + d < S && (numbers.empty() || numbers[at(b, t)] == numbers[at(b, t + d)]);
    };
    out.ahead.push_back(
        {.ids = cut.of<int32_t>([&](int64_t b, int64_t t) { return id(b, (t + d) % S); }),
         .labels = cut.of<int32_t>(
             [&](int64_t b, int64_t t) { return counts(b, t) ? id(b, t + d + 1) : kNoLabel; }),
         .weights = cut.of<float>(
             [&](int64_t b, int64_t t) { return whole.weights[at(b, (t + d) % S)]; })});
  }
  return out;
}

}  // namespace troupe
