// Batches of samples out of the sources of a recipe. Which tokens sample n has is a function of the
// recipe and n: whatever the number of ranks, workers or restarts, and in which pieces a batch is
// asked for. So the whole state of a run's data is one number, the next sample.
//
//   const Data data = build(config.data, needs);
//   TokenBatch batch = data.train->batch(first_sample, count);   // any range, from any thread
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/stop.h"
#include "troupe/data/tokens/data_config.h"
#include "troupe/data/tokens/sampler.h"

namespace troupe {

// B samples of S inputs and S labels. Inputs are ids[b, 0 ... S - 1], labels ids[b, 1 ... S].
struct TokenBatch {
  int64_t first_sample = 0;
  int64_t B = 0, S = 0;
  std::vector<int32_t> ids = {};  // [B, S + 1]; padding is 0
  std::vector<int32_t> documents =
      {};  // [B, S] the document of an input, counted from 0; -1: padding
  std::vector<int32_t> positions = {};  // [B, S] of an input in its document; 0 for padding
  // [B, S] what a label counts in the loss: the source's weight of it, and 0 for padding, for a
  // label of another document than its input, and where eod_mask_loss says so
  std::vector<float> weights = {};
  std::vector<int32_t> sources = {};  // [B] which of Dataset::uses() a sample comes from

  std::span<const int32_t> row(int64_t b) const {
    return std::span(ids).subspan(static_cast<size_t>(b * (S + 1)), static_cast<size_t>(S + 1));
  }
};

// How much of a source is used.
struct SourceUse {
  std::string name;
  int64_t tokens = 0;
  int64_t samples_per_epoch = 0;
  int64_t samples = 0;  // drawn so far
  double epochs() const {
    return static_cast<double>(samples) / static_cast<double>(samples_per_epoch);
  }
};

// Which source sample n comes from, and which of its samples it is.
class SourceOrder {
 public:
  virtual ~SourceOrder() = default;
  virtual int64_t size() const = 0;  // how many samples there are; kEndless
  virtual std::pair<int, int64_t> at(int64_t n) const = 0;
  virtual int64_t count(int source, int64_t n) const = 0;  // of the first n samples
};
inline constexpr int64_t kEndless = int64_t{1} << 40;

struct MixedSource {
  std::string name;
  TokenSourcePtr tokens;
  std::unique_ptr<Sampler> sampler = nullptr;
  std::optional<int64_t> max_epochs = {};
};

// What reading a sample has to know beside its pieces.
struct SampleRules {
  int64_t sequence = 0;
  int64_t vocab = 0;
  std::optional<int32_t> eod = {};
  Documents documents = Documents::kNone;
  bool eod_mask_loss = false;
  std::optional<FimConfig> fim = {};
  uint64_t seed = 0;
  bool pairs = false;  // samples 2 n and 2 n + 1 are a preference pair, chosen and rejected
};

class Dataset {
 public:
  Dataset(std::vector<MixedSource> sources, std::unique_ptr<SourceOrder> order, SampleRules rules);

  int64_t size() const { return order_->size(); }  // samples; kEndless where epochs follow epochs
  bool pairs() const { return rules_.pairs; }
  int64_t samples_per_epoch() const;  // of all sources together
  // Samples first ... first + count - 1. Throws E3102 for an id that the vocabulary does not have,
  // E3104 for a file that changed, E3105 where a source is used up; AskedToStop.
  TokenBatch batch(int64_t first, int64_t count) const;
  // Throws E3105 if a run of that many samples would use up a source: before it starts.
  void require(int64_t samples) const;
  std::vector<SourceUse> uses(int64_t samples) const;  // after that many samples
  // What must be equal for a run to resume with the same samples: (what, value).
  std::vector<std::pair<std::string, std::string>> fingerprint() const;

 private:
  void fill(TokenBatch& batch, int64_t b) const;
  void read(TokenBatch& batch, int64_t b, const MixedSource& source,
            const std::vector<TokenPiece>& pieces) const;
  [[noreturn]] void fail_used_up(int source, int64_t samples) const;

  std::vector<MixedSource> sources_;
  std::unique_ptr<SourceOrder> order_;
  SampleRules rules_;
};

// What a recipe's data has to know of the rest of the recipe.
struct DataNeeds {
  int64_t vocab = 0;
  std::string tokenizer = {};          // fingerprint; empty: not known
  const Tokenizer* encoder = nullptr;  // SourceNeeds::encoder
  std::optional<int32_t> eod = {};
  bool pairs = false;                   // sources are preference pairs, and samples too
  uint64_t seed = 0;                    // train.seed
  int64_t batch = 1;                    // samples of a global batch: an epoch has at least one
  std::optional<int64_t> samples = {};  // of the whole run, where it is known; Megatron's order is
                                        // made for that many
  Log log = {};                         // what is to be said of files
  Log tries = {};                       // RemoteAccess::log
  StopQuestion stop = {};               // ends waits for a network, by AskedToStop
};

struct Data {
  std::unique_ptr<Dataset> train;
  std::vector<std::pair<std::string, std::unique_ptr<Dataset>>> valid;  // by name
  std::unique_ptr<Dataset> test;  // the third part of `split`, where it is not empty
};

// Opens all files and checks their headers and a sample of their ids. Sections that name nothing
// leave their part empty.
Data build(const DataConfig& config, const DataNeeds& needs);

}  // namespace troupe
