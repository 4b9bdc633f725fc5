// How one source is cut into samples, and in which order they come. A sample is `sequence` + 1
// tokens: inputs and labels, one apart.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "troupe/core/number/rng.h"
#include "troupe/data/tokens/megatron_order.h"
#include "troupe/data/tokens/token_source.h"

namespace troupe {

// Consecutive tokens of a source.
struct TokenPiece {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const TokenPiece&) const = default;
};

class Sampler {
 public:
  virtual ~Sampler() = default;
  virtual int64_t samples_per_epoch() const = 0;
  // Sample r of epoch e is number e * samples_per_epoch() + r. The pieces hold `sequence` + 1
  // tokens or fewer; what is missing is padding. Any thread, no state.
  virtual std::vector<TokenPiece> pieces(int64_t sample) const = 0;
};

// Which random numbers a source's order draws: no two sources of a run share them.
struct OrderKey {
  uint64_t seed = 0;
  int source = 0;
};

// Concatenate and cut: sample r is the tokens [shift + r L, shift + (r + 1) L], in an order that is
// a Permutation of each epoch; `shift` is drawn for each epoch, so that the cuts and the few tokens
// left over at the end change. Throws E3103 for fewer than L + 1 tokens.
std::unique_ptr<Sampler> shuffled_chunks(const TokenSource& source, int64_t sequence, OrderKey key);

// For evaluation: the chunks in the file's order; the last one may be short.
std::unique_ptr<Sampler> ordered_chunks(const TokenSource& source, int64_t sequence);

// Best fit, decreasing: sequences share a sample where they fit whole; longer ones are cut first,
// each cut sharing a token with the next so that every token but the first of a sequence is a label
// once. Sequences are packed in windows of 1024 neighbors: opening reads all lengths once and
// keeps 8 bytes a window. The samples of an epoch come in the order of a Permutation.
std::unique_ptr<Sampler> packed_sequences(TokenSourcePtr source, int64_t sequence, OrderKey key);

// Preference pairs: sequences 2 p and 2 p + 1 are the chosen and the rejected one of pair p, and
// samples 2 n and 2 n + 1 those of one pair, a sequence each. Pairs come in the order of a
// Permutation of each epoch, without a key in the source's. A pair of which one has more than
// `sequence` + 1 tokens is left out; opening reads all lengths once and keeps 8 bytes a pair. Throws
// E3101 for an odd number of sequences, E3103 where no pair is left.
struct PreferencePairs {
  std::unique_ptr<Sampler> sampler;
  int64_t pairs = 0, left_out = 0;
};
PreferencePairs preference_pairs(TokenSourcePtr source, int64_t sequence,
                                 const std::optional<OrderKey>& key);

// Megatron's order; it has `index.num_samples()` samples, all of its epochs together.
std::unique_ptr<Sampler> megatron_samples(TokenSourcePtr source, const MegatronNeeds& needs);

}  // namespace troupe
