#include "troupe/data/tokens/sampler.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/number/round.h"
#include "troupe/data/tokens/permutation.h"

namespace troupe {
namespace {

Rng rng_of(const OrderKey& key, int64_t epoch) {
  return {key.seed,
          stream_of("data.order." + std::to_string(key.source) + '.' + std::to_string(epoch))};
}

void require_sample(const TokenSource& source, int64_t needed) {
  if (source.num_tokens() >= needed) return;
  fail(Code::kTooFewTokens, source.place(), "has", source.num_tokens(), "tokens in",
       source.num_sequences(), "sequences; one sample needs", needed);
}

std::vector<int32_t> lengths_of(const TokenSource& source, int64_t first, int64_t count) {
  std::vector<int64_t> starts(static_cast<size_t>(count + 1));
  source.starts(first, starts);
  std::vector<int32_t> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<int32_t>(starts[i + 1] - starts[i]);
  }
  return out;
}

class ShuffledChunks : public Sampler {
 public:
  ShuffledChunks(const TokenSource& source, int64_t L, OrderKey key)
      : L_(L),
        per_epoch_((source.num_tokens() - 1) / L),
        spare_((source.num_tokens() - 1) % L),
        key_(key) {}

  int64_t samples_per_epoch() const override { return per_epoch_; }
  std::vector<TokenPiece> pieces(int64_t sample) const override {
    const Rng rng = rng_of(key_, sample / per_epoch_);
    const auto shift =
        static_cast<int64_t>(static_cast<double>(rng.uniform(0)) * static_cast<double>(spare_ + 1));
    const int64_t chunk = Permutation(per_epoch_, rng)(sample % per_epoch_);
    return {{shift + chunk * L_, L_ + 1}};
  }

 private:
  int64_t L_, per_epoch_, spare_;
  OrderKey key_;
};

class OrderedChunks : public Sampler {
 public:
  OrderedChunks(const TokenSource& source, int64_t L) : L_(L), tokens_(source.num_tokens()) {}

  int64_t samples_per_epoch() const override { return ceil_div(tokens_ - 1, L_); }
  std::vector<TokenPiece> pieces(int64_t sample) const override {
    const int64_t first = sample % samples_per_epoch() * L_;
    return {{first, std::min(L_ + 1, tokens_ - first)}};
  }

 private:
  int64_t L_, tokens_;
};

// Windows of sequences, each packed by itself whenever one of its samples is asked for.
class PackedSequences : public Sampler {
 public:
  PackedSequences(TokenSourcePtr source, int64_t L, OrderKey key)
      : source_(std::move(source)), L_(L), key_(key), first_sample_{0} {
    for (int64_t w = 0; w * kWindow < source_->num_sequences(); ++w) {
      first_sample_.push_back(first_sample_.back() + std::ssize(pack(w)));
    }
    if (samples_per_epoch() > 0) return;
    fail(Code::kTooFewTokens, source_->place(), "has no sequence of two tokens or more");
  }

  int64_t samples_per_epoch() const override { return first_sample_.back(); }
  std::vector<TokenPiece> pieces(int64_t sample) const override {
    const int64_t n = samples_per_epoch();
    const int64_t bin = Permutation(n, rng_of(key_, sample / n))(sample % n);
    const auto above = std::upper_bound(first_sample_.begin(), first_sample_.end(), bin);
    const int64_t window = above - first_sample_.begin() - 1;
    return pack(window)[static_cast<size_t>(bin - first_sample_[static_cast<size_t>(window)])];
  }

 private:
  static constexpr int64_t kWindow = 1024;

  std::vector<TokenPiece> cut_window(int64_t window) const {
    const int64_t first = window * kWindow;
    const int64_t count = std::min(kWindow, source_->num_sequences() - first);
    std::vector<int64_t> starts(static_cast<size_t>(count + 1));
    source_->starts(first, starts);
    std::vector<TokenPiece> out;
    for (size_t i = 0; i + 1 < starts.size(); ++i) {
      for (int64_t at = starts[i]; at + 1 < starts[i + 1]; at += L_) {
        out.push_back({at, std::min(L_ + 1, starts[i + 1] - at)});
      }
    }
    return out;
  }

  std::vector<std::vector<TokenPiece>> pack(int64_t window) const {
    std::vector<TokenPiece> cuts = cut_window(window);
    std::stable_sort(cuts.begin(), cuts.end(),
                     [](const TokenPiece& a, const TokenPiece& b) { return a.count > b.count; });
    std::vector<std::vector<TokenPiece>> bins;
    std::multimap<int64_t, size_t> room;  // what is free in a bin; equal ones in order of age
    for (const TokenPiece& cut : cuts) {
      const auto fit = room.lower_bound(cut.count);
      size_t bin = bins.size();
      int64_t left = L_ + 1;
      if (fit == room.end()) {
        bins.emplace_back();
      } else {
        std::tie(left, bin) = *fit;
        room.erase(fit);
      }
      bins[bin].push_back(cut);
      room.emplace(left - cut.count, bin);
    }
    return bins;
  }

  TokenSourcePtr source_;
  int64_t L_;
  OrderKey key_;
  std::vector<int64_t> first_sample_;  // of each window, and the number of all
};

// The pairs of which both sequences have 1 .. `most` tokens.
std::vector<int64_t> fitting_pairs(const TokenSource& source, int64_t most) {
  constexpr int64_t kBlock = 1 << 15;  // sequences; even
  std::vector<int64_t> out;
  for (int64_t first = 0; first < source.num_sequences(); first += kBlock) {
    const std::vector<int32_t> lengths =
        lengths_of(source, first, std::min(kBlock, source.num_sequences() - first));
    for (size_t i = 0; i + 1 < lengths.size(); i += 2) {
      const auto [least, longest] = std::minmax(lengths[i], lengths[i + 1]);
      if (least > 0 && longest <= most) out.push_back((first + static_cast<int64_t>(i)) / 2);
    }
  }
  return out;
}

class PairSamples : public Sampler {
 public:
  PairSamples(TokenSourcePtr source, std::vector<int64_t> pairs, std::optional<OrderKey> key)
      : source_(std::move(source)), pairs_(std::move(pairs)), key_(key) {}

  int64_t samples_per_epoch() const override { return 2 * num_pairs(); }
  std::vector<TokenPiece> pieces(int64_t sample) const override {
    const int64_t n = sample / 2, place = n % num_pairs();
    const int64_t at =
        key_ ? Permutation(num_pairs(), rng_of(*key_, n / num_pairs()))(place) : place;
    const int64_t sequence = 2 * pairs_[static_cast<size_t>(at)] + sample % 2;
    const int64_t first = source_->start(sequence);
    return {{first, source_->start(sequence + 1) - first}};
  }

 private:
  int64_t num_pairs() const { return std::ssize(pairs_); }

  TokenSourcePtr source_;
  std::vector<int64_t> pairs_;
  std::optional<OrderKey> key_;
};

class MegatronSamples : public Sampler {
 public:
  MegatronSamples(TokenSourcePtr source, const MegatronNeeds& needs)
      : source_(std::move(source)),
        index_(lengths_of(*source_, 0, source_->num_sequences()), needs) {}

  int64_t samples_per_epoch() const override { return index_.num_samples(); }
  std::vector<TokenPiece> pieces(int64_t sample) const override {
    std::vector<TokenPiece> out;
    for (const auto& [sequence, first, count] : index_.sample(sample)) {
      out.push_back({source_->start(sequence) + first, count});
    }
    return out;
  }

 private:
  TokenSourcePtr source_;
  MegatronIndex index_;
};

}  // namespace

std::unique_ptr<Sampler> shuffled_chunks(const TokenSource& source, int64_t sequence,
                                         OrderKey key) {
  require_sample(source, sequence + 1);
  return std::make_unique<ShuffledChunks>(source, sequence, key);
}

std::unique_ptr<Sampler> ordered_chunks(const TokenSource& source, int64_t sequence) {
  require_sample(source, 2);
  return std::make_unique<OrderedChunks>(source, sequence);
}

std::unique_ptr<Sampler> packed_sequences(TokenSourcePtr source, int64_t sequence, OrderKey key) {
  require_sample(*source, 2);
  return std::make_unique<PackedSequences>(std::move(source), sequence, key);
}

PreferencePairs preference_pairs(TokenSourcePtr source, int64_t sequence,
                                 const std::optional<OrderKey>& key) {
  const int64_t sequences = source->num_sequences();
  if (sequences % 2 != 0) {
    fail(Code::kBadTokenFile, source->place(), "has", sequences,
         "sequences; preference pairs are two each");
  }
  std::vector<int64_t> pairs = fitting_pairs(*source, sequence + 1);
  if (pairs.empty()) {
    fail(Code::kTooFewTokens, source->place(), "has no preference pair whose rows have at most",
         sequence + 1, "tokens (data.sequence and one more), of", sequences / 2);
  }
  const int64_t kept = std::ssize(pairs);
  return {.sampler = std::make_unique<PairSamples>(std::move(source), std::move(pairs), key),
          .pairs = kept,
          .left_out = sequences / 2 - kept};
}

std::unique_ptr<Sampler> megatron_samples(TokenSourcePtr source, const MegatronNeeds& needs) {
  require_sample(*source, 2);
  return std::make_unique<MegatronSamples>(std::move(source), needs);
}

}  // namespace troupe
