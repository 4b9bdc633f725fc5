// The section `data` of a recipe.
//   data:
//     train: [{path: corpus/train, weight: 2}, {kind: text, path: notes.txt, weight: 1}]
//     valid: [{path: corpus/valid}]
//     sequence: 4096
//     tokenizer: tokenizer.json
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/config/facts.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/units.h"
#include "troupe/data/tokens/sources.h"

namespace troupe {

enum class DataOrder {
  kOurs,      // a function of seed and sample number; any number of epochs
  kMegatron,  // what Megatron-LM would read (megatron_order.h); a fixed number of samples
};
constexpr auto names_of(DataOrder) {
  return std::array{Named{"ours", DataOrder::kOurs}, Named{"megatron", DataOrder::kMegatron}};
}

enum class PackingMode { kConcat, kBestFit };  // sampler.h
constexpr auto names_of(PackingMode) {
  return std::array{Named{"concat", PackingMode::kConcat},
                    Named{"best_fit", PackingMode::kBestFit}};
}

// Where a document ends within a sample: what attention is masked by and positions begin anew at.
enum class Documents {
  kNone,       // nowhere: a sample is one document
  kSequences,  // where a sequence of the source ends
  kEod,        // behind each end-of-document id
};
constexpr auto names_of(Documents) {
  return std::array{Named{"none", Documents::kNone}, Named{"sequences", Documents::kSequences},
                    Named{"eod", Documents::kEod}};
}

// Fill in the middle, on ids: of a document x (as far as it is in the sample), with chance
// `rate`, two cuts are drawn and prefix | middle | suffix becomes
//   [prefix] prefix [suffix] suffix [middle] middle        or, with chance `spm_rate` of these,
//   [prefix] [suffix] suffix [middle] prefix middle
// What no longer fits falls off the end of the sample.
struct FimConfig {
  double rate = 0.5;
  double spm_rate = 0.5;
  int32_t prefix = 0, middle = 0, suffix = 0;  // the ids of the three marks
  static void visit(auto& c, auto&& f) {
    f("rate", c.rate, "Fraction of documents (0 to 1).");
    f("spm_rate", c.spm_rate, "Fraction of these in suffix-prefix-middle order.");
    f("prefix", c.prefix, "Token id of the prefix sentinel.");
    f("middle", c.middle, "Token id of the middle sentinel.");
    f("suffix", c.suffix, "Token id of the suffix sentinel.");
  }
};

inline constexpr int64_t kMostTokens = int64_t{1} << 53;  // of a run

// A part of a curriculum: from the end of the stage before to `until`, counted in tokens of the
// whole run; the last stage has no end. A source of several stages resumes where it was.
struct StageConfig {
  std::optional<Count> until;
  std::vector<SourceConfig> train;
  static void visit(auto& c, auto&& f) {
    f("until", c.until, "End of the stage in tokens of the run; the last stage has none.",
      AtMost{kMostTokens});
    f("train", c.train, "Mix of this stage.");
  }
};

struct DataConfig {
  std::vector<SourceConfig> train;
  std::vector<StageConfig> stages;  // in place of `train`
  std::vector<SourceConfig> valid;  // each is evaluated by itself, in order, once
  std::string split;  // "969,30,1": parts of each file of `train` for training, validation, test
  int64_t sequence = 1024;
  std::string tokenizer;  // the file that made the ids; empty: not needed
  DataOrder order = DataOrder::kOurs;
  PackingMode packing = PackingMode::kConcat;
  Documents documents = Documents::kNone;
  bool eod_mask_loss = false;  // no loss where the input is the end-of-document id
  std::optional<FimConfig> fim = {};
  std::optional<int64_t> seed = {};     // of the order; absent: train.seed
  CacheConfig cache;                    // of what is behind URLs
  Duration read_timeout = seconds(30);  // of their servers (http.h)

  static void visit(auto& c, auto&& f) {
    f("train", c.train, "Training sources, mixed by weight.");
    f("stages", c.stages, "Sequence of mixes, instead of train.");
    f("valid", c.valid, "Validation sets, each evaluated separately, once, in order.");
    f("split", c.split, "Training, validation and test shares of each file: \"969,30,1\".");
    f("sequence", c.sequence, "Sequence length in tokens, at most model.max_positions.");
    f("tokenizer", c.tokenizer,
      "Tokenizer file or folder, `bytes` or `null:N`; empty: token files only.");
    f("order", c.order, "Sample order: ours, or Megatron-LM's.");
    f("packing", c.packing, "Concatenates documents, or packs whole documents that fit together.");
    f("documents", c.documents,
      "Where attention stops within a sample: none (nowhere), sequences (where a sequence of the "
      "source ends) or eod (after each end-of-document id).");
    f("eod_mask_loss", c.eod_mask_loss,
      "Masks the loss where the input is the end-of-document id.");
    f("fim", c.fim, "Fill-in-the-middle; null: off.");
    f("seed", c.seed, "Seed of the sample order; null: train.seed.",
      AtMost{std::numeric_limits<int64_t>::max()});
    f("cache", c.cache, "Local cache of files read from URLs (https://, s3://).");
    f("read_timeout", c.read_timeout,
      "Time below 1 KiB/s after which a request to a URL is repeated.");
  }
};

// All that can be wrong without opening a file, in one Error: a line a fault.
void validate(const DataConfig& config);

}  // namespace troupe
