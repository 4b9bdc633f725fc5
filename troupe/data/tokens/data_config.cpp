#include "troupe/data/tokens/data_config.h"

#include <algorithm>
#include <cmath>

#include "troupe/core/check.h"
#include "troupe/data/tokens/megatron_order.h"

namespace troupe {
namespace {

// Collects faults, a line each.
class Faults {
 public:
  template <class... Args>
  void add_if(bool wrong, const std::string& place, const Args&... what) {
    if (!wrong) return;
    if (!text_.empty()) text_ += '\n';
    text_ += detail::fault_text(place, Code::kBadValue, what...);
  }
  void raise() const {
    if (!text_.empty()) throw Error(text_, Code::kBadValue);
  }

 private:
  std::string text_;
};

// Their sum must be a number, and none so small beside it that a source is never drawn.
void check_sum(const std::vector<SourceConfig>& sources, const std::string& path, Faults& faults) {
  double sum = 0;
  for (const SourceConfig& source : sources) sum += share_of(source).weight;
  if (!std::isfinite(sum)) {
    faults.add_if(std::ranges::all_of(
                      sources, [](const auto& s) { return std::isfinite(share_of(s).weight); }),
                  path, "weights sum to more than a number holds; give shares of 1");
    return;
  }
  constexpr double kLeast = 1e-12;
  for (size_t i = 0; i < sources.size(); ++i) {
    const double weight = share_of(sources[i]).weight;
    faults.add_if(weight > 0 && weight < kLeast * sum, path + '[' + std::to_string(i) + "].weight",
                  weight, "is less than 1e-12 of all,", sum, "; leave the source out instead");
  }
}

void check_sources(const std::vector<SourceConfig>& sources, const std::string& path,
                   Faults& faults) {
  constexpr size_t kMost = 32766;  // Megatron's limit, and ours: a file each is open.
  faults.add_if(sources.size() > kMost, path, sources.size(), "sources, more than", kMost);
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string place = path + '[' + std::to_string(i) + ']';
    const SourceShare& share = share_of(sources[i]);
    faults.add_if(!(share.weight > 0 && std::isfinite(share.weight)), place + ".weight",
                  share.weight, "is not a positive number; leave the source out instead");
    faults.add_if(share.max_epochs && *share.max_epochs < 1, place + ".max_epochs",
                  share.max_epochs.value_or(0), "must be 1 or more");
    faults.add_if(name_of(sources[i]).empty(), place + ".path", "is empty");
    if (const auto* mock = std::get_if<MockTokens>(&sources[i])) {
      faults.add_if(mock->documents < 1 || mock->documents > 1 << 24, place + ".documents",
                    mock->documents, "is not between 1 and 16777216");
    }
  }
  check_sum(sources, path, faults);
}

void check_stages(const DataConfig& config, Faults& faults) {
  int64_t previous = 0;
  for (size_t i = 0; i < config.stages.size(); ++i) {
    const StageConfig& stage = config.stages[i];
    const std::string place = "data.stages[" + std::to_string(i) + ']';
    check_sources(stage.train, place + ".train", faults);
    faults.add_if(stage.train.empty(), place + ".train", "names no source");
    if (i + 1 == config.stages.size()) {
      faults.add_if(stage.until.has_value(), place + ".until",
                    "is given; the last stage has no end");
    } else if (!stage.until) {
      faults.add_if(true, place + ".until", "is missing; every stage but the last has an end");
    } else {
      faults.add_if(stage.until->value - previous < config.sequence, place + ".until",
                    to_text(*stage.until), "leaves this stage less than one sample");
      previous = stage.until->value;
    }
  }
}

void check_fim(const FimConfig& fim, Faults& faults) {
  const auto is_chance = [](double p) { return 0 <= p && p <= 1; };
  faults.add_if(!is_chance(fim.rate), "data.fim.rate", fim.rate, "is not between 0 and 1");
  faults.add_if(!is_chance(fim.spm_rate), "data.fim.spm_rate", fim.spm_rate,
                "is not between 0 and 1");
  faults.add_if(fim.prefix == fim.middle || fim.prefix == fim.suffix || fim.middle == fim.suffix,
                "data.fim", "the marks", fim.prefix, fim.middle, fim.suffix, "are not distinct");
}

}  // namespace

void validate(const DataConfig& config) {
  Faults faults;
  faults.add_if(config.sequence < 1 || config.sequence > 1 << 24, "data.sequence", config.sequence,
                "is not between 1 and 16777216");
  check_sources(config.train, "data.train", faults);
  check_sources(config.valid, "data.valid", faults);
  check_stages(config, faults);
  if (config.fim) check_fim(*config.fim, faults);
  faults.add_if(!config.train.empty() && !config.stages.empty(), "data.stages",
                "and data.train are given; one of the two names the sources");
  faults.add_if(!config.split.empty() && !config.valid.empty(), "data.split",
                "and data.valid are given; the split's second part is the validation set");
  faults.add_if(
      !config.split.empty() && !config.stages.empty(), "data.split",
      "cuts the files of data.train; with data.stages name validation files in data.valid");
  faults.add_if(config.packing == PackingMode::kBestFit && config.documents == Documents::kNone,
                "data.packing", "best_fit puts documents side by side: set data.documents");
  const bool megatron = config.order == DataOrder::kMegatron;
  faults.add_if(megatron && config.packing != PackingMode::kConcat, "data.packing",
                "Megatron's order concatenates; best_fit needs data.order: ours");
  faults.add_if(megatron && !config.stages.empty(), "data.stages",
                "Megatron's order has no stages; they need data.order: ours");
  faults.add_if(config.read_timeout.ns <= 0, "data.read_timeout", to_text(config.read_timeout),
                "is not above 0");
  faults.add_if(config.seed && *config.seed < 0, "data.seed", config.seed.value_or(0),
                "is negative");
  faults.raise();
  if (!config.split.empty()) split_bounds(config.split, 0);
}

}  // namespace troupe
