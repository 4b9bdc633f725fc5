#include "troupe/data/tokens/token_source.h"

#include <algorithm>
#include <array>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/number/round.h"

namespace troupe {
namespace {

class SequenceRange : public TokenSource {
 public:
  SequenceRange(TokenSourcePtr source, int64_t begin, int64_t end)
      : source_(std::move(source)),
        begin_(begin),
        end_(end),
        first_token_(source_->start(begin)),
        num_tokens_(source_->start(end) - first_token_) {}

  std::string place() const override { return source_->place(); }
  int64_t num_sequences() const override { return end_ - begin_; }
  int64_t num_tokens() const override { return num_tokens_; }
  void starts(int64_t first, std::span<int64_t> out) const override {
    source_->starts(begin_ + first, out);
    for (int64_t& start : out) start -= first_token_;
  }
  void read(int64_t first, std::span<int32_t> out) const override {
    source_->read(first_token_ + first, out);
  }
  bool has_weights() const override { return source_->has_weights(); }
  bool is_far() const override { return source_->is_far(); }
  void read_weights(int64_t first, std::span<float> out) const override {
    source_->read_weights(first_token_ + first, out);
  }
  void require_unchanged() const override { source_->require_unchanged(); }
  std::string fingerprint() const override {
    return source_->fingerprint() + '[' + std::to_string(begin_) + ',' + std::to_string(end_) + ')';
  }

 private:
  TokenSourcePtr source_;
  int64_t begin_, end_, first_token_, num_tokens_;
};

}  // namespace

void TokenSource::read_weights(int64_t /*first*/, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 1.0f);
}

int64_t TokenSource::start(int64_t sequence) const {
  int64_t out = 0;
  starts(sequence, {&out, 1});
  return out;
}

int64_t TokenSource::sequence_at(int64_t token) const {
  TROUPE_CHECK(0 <= token && token < num_tokens(), "token", token, "of", num_tokens());
  int64_t low = 0, high = num_sequences();  // start(low) <= token < start(high)
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (start(middle) <= token ? low : high) = middle;
  }
  return low;
}

std::vector<int64_t> TokenSource::starts_between(int64_t first, int64_t end) const {
  std::vector<int64_t> out;
  if (end - first < 2) return out;
  std::array<int64_t, 64> block;
  int64_t next = sequence_at(first) + 1;
  while (true) {
    const int64_t count = std::min<int64_t>(std::ssize(block), num_sequences() + 1 - next);
    if (count <= 0) return out;
    starts(next, std::span(block).first(static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = block[static_cast<size_t>(i)];
      if (at >= end) return out;
      if (out.empty() || out.back() != at) out.push_back(at);  // Empty sequences begin twice.
    }
    next += count;
  }
}

TokenSourcePtr sequence_range(TokenSourcePtr source, int64_t begin, int64_t end) {
  TROUPE_CHECK(0 <= begin && begin <= end && end <= source->num_sequences(), begin, end, "of",
               source->num_sequences());
  if (begin == 0 && end == source->num_sequences()) return source;
  return std::make_shared<SequenceRange>(std::move(source), begin, end);
}

void require_below(std::span<const int32_t> ids, int64_t vocab, const TokenSource& source,
                   int64_t first) {
  // One pass without branches, as nearly every block is good.
  uint32_t highest = 0;
  for (const int32_t id : ids) highest = std::max(highest, static_cast<uint32_t>(id));
  if (highest < vocab) return;
  const auto bad =
      std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return id < 0 || id >= vocab; });
  const int64_t token = first + (bad - ids.begin());
  const int64_t sequence = source.sequence_at(token);
  fail(Code::kBadToken, source.place(), "sequence", sequence, "has at its position",
       token - source.start(sequence), "the token id", *bad, "; the vocabulary has", vocab,
       "(0 to " + std::to_string(vocab - 1) + "). Was it made with another tokenizer?");
}

int64_t scan_tokens(const TokenSource& source, int64_t vocab, int64_t blocks) {
  constexpr int64_t kPiece = 1 << 16;
  const int64_t all = ceil_div(source.num_tokens(), kPiece);
  const int64_t wanted = blocks == 0 ? all : std::min(blocks, all);
  std::vector<int32_t> ids;
  int64_t seen = 0;
  for (int64_t i = 0; i < wanted; ++i) {
    // The first and the last block are among them.
    const int64_t block = wanted == 1 ? 0 : i * (all - 1) / (wanted - 1);
    const int64_t first = block * kPiece;
    ids.resize(static_cast<size_t>(std::min(kPiece, source.num_tokens() - first)));
    source.read(first, ids);
    require_below(ids, vocab, source, first);
    seen += std::ssize(ids);
  }
  return seen;
}

}  // namespace troupe
