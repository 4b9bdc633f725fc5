// From the recipe's section to the datasets of a run: build() of dataset.h.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "troupe/core/check.h"
#include "troupe/core/file/secrets.h"
#include "troupe/core/number/round.h"
#include "troupe/data/tokens/dataset.h"
#include "troupe/data/tokens/megatron_order.h"
#include "troupe/data/tokens/mix.h"

namespace troupe {
namespace {

constexpr int64_t kScannedBlocks = 16;  // of 65,536 ids each, when a source is opened

// Every sample comes from the one source.
class OneSource : public SourceOrder {
 public:
  explicit OneSource(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  std::pair<int, int64_t> at(int64_t n) const override { return {0, n}; }
  int64_t count(int /*source*/, int64_t n) const override { return n; }

 private:
  int64_t size_;
};

// Stages, each a Mix of some of the sources.
struct Stage {
  int64_t first_sample = 0;
  std::vector<int> sources;  // of the Mix's numbers, those of the dataset
  Mix mix;
};

class StagedMix : public SourceOrder {
 public:
  explicit StagedMix(std::vector<Stage> stages) : stages_(std::move(stages)) {}

  int64_t size() const override { return kEndless; }
  std::pair<int, int64_t> at(int64_t n) const override {
    const auto above = std::upper_bound(
        stages_.begin(), stages_.end(), n,
        [](int64_t sample, const Stage& stage) { return sample < stage.first_sample; });
    const Stage& stage = *(above - 1);
    const auto [within, index] = stage.mix.at(n - stage.first_sample);
    const int source = stage.sources[static_cast<size_t>(within)];
    return {source, count(source, stage.first_sample) + index};
  }
  int64_t count(int source, int64_t n) const override {
    int64_t sum = 0;
    for (size_t i = 0; i < stages_.size() && stages_[i].first_sample < n; ++i) {
      const Stage& stage = stages_[i];
      const int64_t end = i + 1 < stages_.size() ? std::min(n, stages_[i + 1].first_sample) : n;
      const auto found = std::ranges::find(stage.sources, source);
      if (found == stage.sources.end()) continue;
      const auto within = static_cast<int>(found - stage.sources.begin());
      sum += stage.mix.count(within, end - stage.first_sample);
    }
    return sum;
  }

 private:
  std::vector<Stage> stages_;
};

class MegatronOrder : public SourceOrder {
 public:
  explicit MegatronOrder(MegatronBlend blend) : blend_(std::move(blend)) {}
  int64_t size() const override { return std::ssize(blend_.dataset); }
  std::pair<int, int64_t> at(int64_t n) const override {
    const auto i = static_cast<size_t>(n);
    return {blend_.dataset[i], blend_.index[i]};
  }
  int64_t count(int source, int64_t n) const override {
    return std::count(blend_.dataset.begin(), blend_.dataset.begin() + std::min(n, size()), source);
  }

 private:
  MegatronBlend blend_;
};

// Pairs of samples: an order of pairs says where both are from.
class PairOrder : public SourceOrder {
 public:
  explicit PairOrder(std::unique_ptr<SourceOrder> pairs) : pairs_(std::move(pairs)) {}
  int64_t size() const override {
    const int64_t pairs = pairs_->size();
    return pairs == kEndless ? kEndless : 2 * pairs;
  }
  std::pair<int, int64_t> at(int64_t n) const override {
    const auto [source, index] = pairs_->at(n / 2);
    return {source, 2 * index + n % 2};
  }
  int64_t count(int source, int64_t n) const override {
    const bool half = n % 2 != 0 && pairs_->at(n / 2).first == source;
    return 2 * pairs_->count(source, n / 2) + half;
  }

 private:
  std::unique_ptr<SourceOrder> pairs_;
};

// Opens and cuts sources by the recipe; one object a build().
class Builder {
 public:
  Builder(const DataConfig& config, const DataNeeds& needs)
      : config_(config),
        needs_(needs),
        seed_(config.seed ? static_cast<uint64_t>(*config.seed) : needs.seed),
        source_needs_{.vocab = needs.vocab,
                      .tokenizer = needs.tokenizer,
                      .encoder = needs.encoder,
                      .eod = needs.eod,
                      .pairs = needs.pairs,
                      .log = needs.log,
                      .remote = {.cache = config.cache,
                                 .timeout = config.read_timeout,
                                 .log = needs.tries,
                                 .file_log = needs.log,
                                 .stop = needs.stop}} {
    if (!needs_.eod && (config.documents == Documents::kEod || config.eod_mask_loss)) {
      fail(Code::kBadValue, "data",
           "documents: eod and eod_mask_loss need a tokenizer with an end-of-document id");
    }
    if (config.fim) {
      const FimConfig& fim = *config.fim;
      for (const int32_t mark : {fim.prefix, fim.middle, fim.suffix}) {
        if (mark >= 0 && mark < needs.vocab) continue;
        fail(Code::kBadValue, "data.fim", "mark", mark, "is not below the vocabulary's",
             needs.vocab);
      }
    }
  }

  Data build() {
    warn_of_overlap();
    Data data;
    if (!config_.stages.empty()) {
      data.train = staged(config_.stages);
    } else if (!config_.train.empty()) {
      data.train = config_.order == DataOrder::kMegatron
                       ? megatron(0)
                       : staged({{.until = {}, .train = config_.train}});
    }
    for (const SourceConfig& source : config_.valid) {
      data.valid.emplace_back(shown(source), in_order(source, 0));
    }
    if (config_.split.empty()) return data;
    for (const SourceConfig& source : config_.train) {
      if (part_tokens(source, 1) > 1) data.valid.emplace_back(shown(source), in_order(source, 1));
    }
    if (config_.train.size() == 1 && part_tokens(config_.train[0], 2) > 1) {
      data.test = in_order(config_.train[0], 2);
    }
    return data;
  }

 private:
  // The part of a source that `split` gives to training (0), validation (1) or test (2).
  TokenSourcePtr open_part(const SourceConfig& config, size_t part) const {
    if (needs_.pairs && !std::holds_alternative<MegatronFiles>(config)) {
      fail(Code::kBadValue, shown(config),
           "holds no preference pairs, which train.loss: dpo learns from: name a PREFIX of troupe "
           "data build");
    }
    TokenSourcePtr source = open(config, source_needs_);
    scan_tokens(*source, needs_.vocab, kScannedBlocks);
    return cut(std::move(source), part);
  }
  TokenSourcePtr cut(TokenSourcePtr source, size_t part) const {
    if (config_.split.empty()) return source;
    const auto bounds = split_bounds(config_.split, source->num_sequences());
    return sequence_range(std::move(source), bounds[part], bounds[part + 1]);
  }
  int64_t part_tokens(const SourceConfig& config, size_t part) const {
    return cut(open(config, source_needs_), part)->num_tokens();
  }

  SampleRules rules() const {
    return {.sequence = config_.sequence,
            .vocab = needs_.vocab,
            .eod = needs_.eod,
            .documents = config_.documents,
            .eod_mask_loss = config_.eod_mask_loss,
            .fim = config_.fim,
            .seed = seed_,
            .pairs = needs_.pairs};
  }

  std::unique_ptr<Dataset> in_order(const SourceConfig& config, size_t part) const {
    MixedSource source{.name = shown(config), .tokens = open_part(config, part)};
    source.sampler = needs_.pairs ? pairs_of(source, std::nullopt)
                                  : ordered_chunks(*source.tokens, config_.sequence);
    auto order = std::make_unique<OneSource>(source.sampler->samples_per_epoch());
    std::vector<MixedSource> sources;
    sources.push_back(std::move(source));
    SampleRules plain = rules();
    plain.fim.reset();  // What is measured is the text as it is.
    return std::make_unique<Dataset>(std::move(sources), std::move(order), plain);
  }

  std::unique_ptr<Sampler> pairs_of(const MixedSource& source,
                                    const std::optional<OrderKey>& key) const {
    PreferencePairs found = preference_pairs(source.tokens, config_.sequence, key);
    if (found.left_out > 0) {
      needs_.log.warning("data: " + source.name + ": " + std::to_string(found.left_out) + " of " +
                         std::to_string(found.left_out + found.pairs) +
                         " preference pairs are longer than data.sequence, " +
                         std::to_string(config_.sequence) + ", and left out");
    }
    return std::move(found.sampler);
  }

  MixedSource shuffled(const SourceConfig& config, int number) const {
    MixedSource out{.name = shown(config),
                    .tokens = open_part(config, 0),
                    .sampler = nullptr,
                    .max_epochs = share_of(config).max_epochs};
    const OrderKey key{.seed = seed_, .source = number};
    if (needs_.pairs) {
      out.sampler = pairs_of(out, key);
      return out;
    }
    out.sampler = config_.packing == PackingMode::kBestFit
                      ? packed_sequences(out.tokens, config_.sequence, key)
                      : shuffled_chunks(*out.tokens, config_.sequence, key);
    return out;
  }

  std::unique_ptr<Dataset> staged(const std::vector<StageConfig>& configs) const {
    std::vector<MixedSource> sources;
    std::vector<std::string> names;  // of each of these, whole
    std::vector<Stage> stages;
    int64_t first_sample = 0;
    for (const StageConfig& config : configs) {
      std::vector<double> weights;
      std::vector<int> numbers;
      for (const SourceConfig& source : config.train) {
        const std::string name = name_of(source);
        const auto found = std::ranges::find(names, name);
        numbers.push_back(static_cast<int>(found - names.begin()));
        if (found == names.end()) {  // a path that several stages name is one source
          names.push_back(name);
          sources.push_back(shuffled(source, numbers.back()));
        }
        weights.push_back(share_of(source).weight);
      }
      say_shares(config.train, weights);
      const Rng rng(seed_, stream_of("data.mix." + std::to_string(stages.size())));
      stages.push_back({first_sample, std::move(numbers), Mix(weights, rng)});
      const int64_t together = needs_.pairs ? 2 : 1;  // samples that the mix draws at once
      if (config.until) first_sample = config.until->value / (config_.sequence * together);
    }
    std::unique_ptr<SourceOrder> order = std::make_unique<StagedMix>(std::move(stages));
    if (needs_.pairs) order = std::make_unique<PairOrder>(std::move(order));
    return finished(std::move(sources), std::move(order));
  }

  // Weights that do not sum to 1 are still shares: one line says which.
  void say_shares(const std::vector<SourceConfig>& sources,
                  const std::vector<double>& weights) const {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    if (weights.size() < 2 || std::abs(sum - 1) < 1e-9) return;
    std::string line = "data: weights sum to " + to_text(sum) + "; shares are";
    for (size_t i = 0; i < weights.size() && i < 10; ++i) {
      line += ' ' + name_of(sources[i]) + ' ' + to_text(weights[i] / sum);
    }
    needs_.log.info(line);
  }

  std::unique_ptr<Dataset> megatron(size_t part) const {
    std::vector<double> weights;
    for (const SourceConfig& config : config_.train) weights.push_back(share_of(config).weight);
    say_shares(config_.train, weights);
    std::vector<std::optional<int64_t>> wanted(weights.size(), needs_.samples);
    std::unique_ptr<SourceOrder> order;
    if (weights.size() > 1) {
      if (!needs_.samples) {
        fail(Code::kBadValue, "data.order", "a blend in Megatron's order needs the run's length");
      }
      MegatronBlend blend(weights, *needs_.samples);
      std::ranges::copy(blend.built, wanted.begin());
      order = std::make_unique<MegatronOrder>(std::move(blend));
    }
    std::vector<MixedSource> sources;
    for (const SourceConfig& config : config_.train) {
      MixedSource source{.name = shown(config), .tokens = open_part(config, part)};
      source.sampler = megatron_samples(source.tokens, {.sequence = config_.sequence,
                                                        .seed = static_cast<uint32_t>(seed_),
                                                        .samples = wanted[sources.size()]});
      sources.push_back(std::move(source));
    }
    if (!order) order = std::make_unique<OneSource>(sources[0].sampler->samples_per_epoch());
    return finished(std::move(sources), std::move(order));
  }

  std::unique_ptr<Dataset> finished(std::vector<MixedSource> sources,
                                    std::unique_ptr<SourceOrder> order) const {
    auto out = std::make_unique<Dataset>(std::move(sources), std::move(order), rules());
    if (out->samples_per_epoch() < needs_.batch) {
      fail(Code::kTooFewTokens, "data.train", "all sources together have", out->samples_per_epoch(),
           "samples of", config_.sequence, "tokens; a global batch needs", needs_.batch);
    }
    if (needs_.samples) out->require(*needs_.samples);
    return out;
  }

  void warn_of_overlap() const {
    std::set<std::string> trained;
    const auto add = [&](const std::vector<SourceConfig>& sources) {
      for (const SourceConfig& source : sources) trained.insert(same_place(source));
    };
    add(config_.train);
    for (const StageConfig& stage : config_.stages) add(stage.train);
    for (const SourceConfig& source : config_.valid) {
      if (!trained.contains(same_place(source))) continue;
      needs_.log.warning("data.valid: " + name_of(source) +
                         " is trained on as well: its loss says nothing about new text");
    }
  }
  // As messages, logs and checkpoints name it: a signature may change between two parts of a run.
  static std::string shown(const SourceConfig& source) { return without_secrets(name_of(source)); }
  static std::string same_place(const SourceConfig& source) {
    std::string name = name_of(source);
    if (is_url(name)) return name;
    std::error_code unknown;  // then it is what it is called; who opens it says what is wrong
    const auto real = std::filesystem::weakly_canonical(name, unknown);
    return unknown ? name : real.string();
  }

  const DataConfig& config_;
  const DataNeeds& needs_;
  uint64_t seed_;
  SourceNeeds source_needs_;
};

}  // namespace

Data build(const DataConfig& config, const DataNeeds& needs) {
  validate(config);
  return Builder(config, needs).build();
}

}  // namespace troupe
