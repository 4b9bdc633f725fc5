#include "troupe/data/tokens/dataset.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "troupe/core/check.h"
#include "troupe/core/device/thread_pool.h"

namespace troupe {
namespace {

// One row of a batch while it is put together.
struct Row {
  std::span<int32_t> ids;          // [S + 1]
  std::vector<int32_t> documents;  // [S + 1]; -1: padding
  std::vector<float> weights;      // [S + 1] of a token as a label
};

// A new document behind each end-of-document id.
void split_at_eod(Row& row, int32_t eod) {
  int32_t document = 0;
  for (size_t i = 0; i < row.ids.size(); ++i) {
    if (row.documents[i] < 0) return;
    row.documents[i] = document;
    document += row.ids[i] == eod;
  }
}

// x, rearranged by the cuts 0 <= a <= b <= n.
std::vector<size_t> fim_order(size_t n, size_t a, size_t b, bool spm) {
  std::vector<size_t> out(n);
  std::iota(out.begin(), out.end(), size_t{0});
  // PSM: prefix suffix middle. SPM: suffix prefix middle.
  const auto at = [&](size_t i) { return out.begin() + static_cast<std::ptrdiff_t>(i); };
  std::rotate(at(a), at(b), out.end());
  if (spm) std::rotate(out.begin(), at(a), at(a + n - b));
  return out;
}

// Rewrites the documents of a row that the draw picks; the row keeps its length.
class Fim {
 public:
  Fim(const FimConfig& config, Row& row, Rng rng, int64_t sample)
      : config_(config), row_(row), rng_(rng), sample_(static_cast<uint64_t>(sample)) {}

  void run() {
    size_t begin = 0;
    while (begin < row_.ids.size() && row_.documents[begin] >= 0) {
      size_t end = begin;
      while (end < row_.ids.size() && row_.documents[end] == row_.documents[begin]) ++end;
      add_document(begin, end);
      begin = end;
    }
    const size_t size = std::min(ids_.size(), row_.ids.size());
    std::copy_n(ids_.begin(), size, row_.ids.begin());
    std::copy_n(documents_.begin(), size, row_.documents.begin());
    std::copy_n(weights_.begin(), size, row_.weights.begin());
  }

 private:
  void add(int32_t id, int32_t document, float weight) {
    ids_.push_back(id);
    documents_.push_back(document);
    weights_.push_back(weight);
  }
  void add_token(size_t i) { add(row_.ids[i], row_.documents[i], row_.weights[i]); }

  void add_document(size_t begin, size_t end) {
    const auto draw = [&](uint32_t what) {
      return static_cast<double>(
          rng_.uniform(sample_, 4 * static_cast<uint32_t>(row_.documents[begin]) + what));
    };
    if (draw(0) >= config_.rate) {
      for (size_t i = begin; i < end; ++i) add_token(i);
      return;
    }
    const bool spm = draw(1) < config_.spm_rate;
    const size_t n = end - begin;
    const auto cut = [&](uint32_t what) {
      return static_cast<size_t>(draw(what) * static_cast<double>(n + 1));
    };
    const auto [a, b] = std::minmax({cut(2), cut(3)});
    const std::vector<size_t> order = fim_order(n, a, b, spm);
    const auto mark = [&](int32_t id) { add(id, row_.documents[begin], 1); };
    // PSM: [prefix] p [suffix] s [middle] m.  SPM: [prefix] [suffix] s [middle] p m.
    const size_t suffix_at = spm ? 0 : a, middle_at = spm ? n - b : a + n - b;
    mark(config_.prefix);
    for (size_t i = 0; i <= n; ++i) {
      if (i == suffix_at) mark(config_.suffix);
      if (i == middle_at) mark(config_.middle);
      if (i < n) add_token(begin + order[i]);
    }
  }

  const FimConfig& config_;
  Row& row_;
  Rng rng_;
  uint64_t sample_;
  std::vector<int32_t> ids_, documents_;
  std::vector<float> weights_;
};

template <class T>
std::span<T> row_of(std::vector<T>& values, int64_t b, int64_t width) {
  return std::span(values).subspan(static_cast<size_t>(b * width), static_cast<size_t>(width));
}

}  // namespace

Dataset::Dataset(std::vector<MixedSource> sources, std::unique_ptr<SourceOrder> order,
                 SampleRules rules)
    : sources_(std::move(sources)), order_(std::move(order)), rules_(rules) {
  TROUPE_CHECK(rules_.sequence > 0 && rules_.vocab > 0, rules_.sequence, rules_.vocab);
}

int64_t Dataset::samples_per_epoch() const {
  int64_t sum = 0;
  for (const MixedSource& source : sources_) sum += source.sampler->samples_per_epoch();
  return sum;
}

void Dataset::fail_used_up(int source, int64_t samples) const {
  const MixedSource& s = sources_[static_cast<size_t>(source)];
  const int64_t per = s.sampler->samples_per_epoch();
  fail(Code::kSourceUsedUp, s.name, "has", per, "samples and max_epochs", *s.max_epochs, "allows",
       per * *s.max_epochs, "; the mix asks for", samples);
}

void Dataset::require(int64_t samples) const {
  if (samples > size()) {
    fail(Code::kSourceUsedUp, "data", "has", size(), "samples; the run asks for", samples);
  }
  for (int i = 0; i < static_cast<int>(sources_.size()); ++i) {
    const MixedSource& source = sources_[static_cast<size_t>(i)];
    const int64_t count = order_->count(i, samples);
    if (source.max_epochs && count > *source.max_epochs * source.sampler->samples_per_epoch()) {
      fail_used_up(i, count);
    }
  }
}

std::vector<SourceUse> Dataset::uses(int64_t samples) const {
  std::vector<SourceUse> out;
  for (const MixedSource& source : sources_) {
    out.push_back({.name = source.name,
                   .tokens = source.tokens->num_tokens(),
                   .samples_per_epoch = source.sampler->samples_per_epoch(),
                   .samples = order_->count(static_cast<int>(out.size()), samples)});
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> Dataset::fingerprint() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const MixedSource& source : sources_) {
    out.emplace_back("data " + source.name, source.tokens->fingerprint());
  }
  return out;
}

TokenBatch Dataset::batch(int64_t first, int64_t count) const {
  TROUPE_CHECK(first >= 0 && count >= 0, first, count);
  if (first + count > size()) {
    fail(Code::kSourceUsedUp, "data", "has", size(), "samples;", first + count - 1,
         "is not among them");
  }
  const int64_t S = rules_.sequence;
  const auto inputs = static_cast<size_t>(count * S);
  TokenBatch out{.first_sample = first, .B = count, .S = S};
  out.ids.resize(static_cast<size_t>(count * (S + 1)));
  out.documents.resize(inputs);
  out.positions.resize(inputs);
  out.weights.resize(inputs);
  out.sources.resize(static_cast<size_t>(count));
  // What comes over a network is waited for by many samples at once.
  const auto far = [](const MixedSource& source) { return source.tokens->is_far(); };
  const Pool pool = std::ranges::any_of(sources_, far) ? thread_pool(16) : Pool(serial);
  pool(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) fill(out, b);
  });
  for (size_t s = 0; s < sources_.size(); ++s) {
    if (std::ranges::count(out.sources, static_cast<int32_t>(s)) > 0) {
      sources_[s].tokens->require_unchanged();
    }
  }
  return out;
}

void Dataset::fill(TokenBatch& batch, int64_t b) const {
  const auto [source, index] = order_->at(batch.first_sample + b);
  const MixedSource& from = sources_[static_cast<size_t>(source)];
  const int64_t per = from.sampler->samples_per_epoch();
  if (from.max_epochs && index >= per * *from.max_epochs) fail_used_up(source, index + 1);
  batch.sources[static_cast<size_t>(b)] = source;
  read(batch, b, from, from.sampler->pieces(index));
}

void Dataset::read(TokenBatch& batch, int64_t b, const MixedSource& source,
                   const std::vector<TokenPiece>& pieces) const {
  const int64_t S = rules_.sequence;
  const auto width = static_cast<size_t>(S + 1);
  Row row{.ids = row_of(batch.ids, b, S + 1),
          .documents = std::vector<int32_t>(width, -1),
          .weights = std::vector<float>(width, 0)};
  size_t at = 0;
  int32_t document = 0;
  for (const auto& [first, count] : pieces) {
    const auto ids = row.ids.subspan(at, static_cast<size_t>(count));
    source.tokens->read(first, ids);
    require_below(ids, rules_.vocab, *source.tokens, first);
    source.tokens->read_weights(first, std::span(row.weights).subspan(at, ids.size()));
    std::vector<int64_t> starts;
    if (rules_.documents == Documents::kSequences) {
      starts = source.tokens->starts_between(first, first + count);
    }
    starts.push_back(first + count);
    for (int64_t token = first; const int64_t next : starts) {
      for (; token < next; ++token) row.documents[at++] = document;
      document += rules_.documents != Documents::kNone;
    }
  }
  if (rules_.documents == Documents::kEod && rules_.eod) split_at_eod(row, *rules_.eod);
  if (rules_.fim) {
    Fim(*rules_.fim, row, Rng(rules_.seed, stream_of("data.fim")), batch.first_sample + b).run();
  }
  const auto documents = row_of(batch.documents, b, S), positions = row_of(batch.positions, b, S);
  const auto weights = row_of(batch.weights, b, S);
  for (size_t s = 0; s + 1 < width; ++s) {
    const bool same = row.documents[s] == row.documents[s + 1];  // False before padding.
    const bool masked = rules_.eod_mask_loss && rules_.eod && row.ids[s] == *rules_.eod;
    documents[s] = row.documents[s];
    const bool goes_on = s > 0 && row.documents[s] == row.documents[s - 1] && row.documents[s] >= 0;
    positions[s] = goes_on ? positions[s - 1] + 1 : 0;
    weights[s] = same && !masked ? row.weights[s + 1] : 0;
  }
}

}  // namespace troupe
