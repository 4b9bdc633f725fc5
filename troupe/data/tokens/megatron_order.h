// The order in which Megatron-LM (core 0.16 to 0.19) reads a GPT data set, sample for sample, for
// runs that are to see what a Megatron run saw. Unlike our own order it needs arrays: 12 bytes for
// each sequence of each epoch, 4 for each sample, 10 for each sample of a blend.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

// "969,30,1" over n sequences: the bounds of the three parts, part p is [b[p], b[p + 1]). Missing
// numbers are 0; the sum is their unit. Rounded half to even. Throws E2005 for other text.
std::array<int64_t, 4> split_bounds(const std::string& split, int64_t n);

struct MegatronNeeds {
  int64_t sequence = 0;  // L: a sample is L + 1 tokens, and shares one with the next
  uint32_t seed = 1234;
  std::optional<int64_t> samples = {};  // N; absent: one epoch
};

// Sample i is the tokens [t, t + L] of the stream that the sequences of `document_index` form, one
// after the other, where t = L shuffle_index[i].
class MegatronIndex {
 public:
  // `lengths` of the sequences of one split, in the file's order. Throws E3103 if their tokens make
  // no sample.
  MegatronIndex(std::span<const int32_t> lengths, const MegatronNeeds& needs);

  int64_t num_samples() const { return std::ssize(shuffle_); }
  int64_t num_epochs() const { return epochs_; }
  bool has_separate_epoch() const { return separate_; }
  const std::vector<int32_t>& document_index() const { return documents_; }
  const std::vector<uint32_t>& shuffle_index() const { return shuffle_; }
  // Row k of Megatron's sample_index: a position in document_index, and a token in that sequence.
  std::pair<int64_t, int64_t> sample_index(int64_t k) const { return locate(k * sequence_); }

  struct TokenPiece {
    int64_t sequence;  // of `lengths`
    int64_t first;     // token in it
    int64_t count;
    bool operator==(const TokenPiece&) const = default;
  };
  std::vector<TokenPiece> sample(int64_t i) const;  // L + 1 tokens in all

 private:
  std::pair<int64_t, int64_t> locate(int64_t token) const;

  int64_t sequence_, epochs_ = 1;
  bool separate_ = false;
  std::vector<int32_t> documents_;
  std::vector<int64_t> begins_;  // of each entry of documents_ in the stream, and the stream's end
  std::vector<uint32_t> shuffle_;
};

// Blending. `weights` as given; N samples wanted.
struct MegatronBlend {
  MegatronBlend(std::span<const double> weights, int64_t samples);

  // How many samples each data set is built with, the N of its MegatronIndex.
  std::vector<int64_t> built;
  std::vector<int16_t> dataset;  // of each sample of the blend
  std::vector<int64_t> index;    // and its number in that data set
};

// The greedy rule alone: sample i goes where w max(i, 1) - taken is largest, the first of equals.
void megatron_blend_indices(std::span<const double> weights, std::span<int16_t> dataset,
                            std::span<int64_t> index);

}  // namespace troupe
