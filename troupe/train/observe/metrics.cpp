#include "troupe/train/observe/metrics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {

void Interval::add(const StepReport& report, double step_seconds, double wait_seconds) {
  ++steps_;
  tokens_ += report.tokens;
  if (report.finite) {
    ++finite_;
    loss_ += report.loss * report.weight_sum;
    weight_ += report.weight_sum;
  }
  seconds_ += step_seconds;
  wait_ += wait_seconds;
  for (const auto& [unit, stats] : report.output.moe) {
    std::vector<MoeStats>& own = moe_[unit];
    own.resize(stats.size());
    for (size_t i = 0; i < stats.size(); ++i) {
      own[i].counts_E.defined() ? void(own[i] += stats[i]) : void(own[i] = stats[i]);
    }
  }
  for (const auto& [name, value] : report.output.aux) {
    auto& [sum, terms] = aux_[name];
    sum = sum.defined() ? sum + value : value;
    terms += report.output.aux_terms.at(name);
  }
  const at::Tensor& cut_off = report.fp8_saturated;
  if (cut_off.defined()) {
    fp8_saturated_ = fp8_saturated_.defined() ? fp8_saturated_ + cut_off : cut_off.view({1});
  }
}

namespace {

// What ranks know of a layer beside its counts: 1 where it is so.
enum Known : size_t { kDrops, kSaturates, kScores, kForced, kKnown };

at::Tensor or_zero(const at::Tensor& x, const at::TensorOptions& options) {
  return x.defined() ? x.to(options).reshape({1}) : at::zeros({1}, options);
}

}  // namespace

void Interval::add_other_ranks(const SumOver& sum, const std::vector<MoeUnit>& layers,
                               const c10::Device& device) {
  if (!sum) return;
  const at::TensorOptions whole = at::TensorOptions(at::kLong).device(device),
                          real = whole.dtype(at::kDouble);
  const auto stats_of = [&](size_t layer) -> const MoeStats* {
    const auto unit = moe_.find(layers[layer].unit);
    size_t before = 0;  // layers of the same unit
    while (before < layer && layers[layer - before - 1].unit == layers[layer].unit) ++before;
    return unit == moe_.end() ? nullptr : &unit->second.at(before);
  };
  std::vector<int64_t> known(layers.size() * kKnown);
  std::vector<at::Tensor> counts, terms;  // terms: pairs of a sum and how many were summed
  const auto add_term = [&](const at::Tensor& value, int64_t n) {
    terms.push_back(or_zero(value, real));
    terms.push_back(at::full({1}, static_cast<double>(n), real));
  };
  for (size_t i = 0; i < layers.size(); ++i) {
    const MoeStats* const own = stats_of(i);
    const MoeStats stats = own == nullptr ? MoeStats{} : *own;
    counts.push_back(own == nullptr ? at::zeros({layers[i].config.experts}, whole)
                                    : stats.counts_E.to(whole));
    counts.push_back(or_zero(stats.dropped, whole));
    counts.push_back(or_zero(stats.saturated, whole));
    known[i * kKnown + kDrops] = stats.dropped.defined();
    known[i * kKnown + kSaturates] = stats.saturated.defined();
    known[i * kKnown + kScores] = stats.score_sum.defined();
    known[i * kKnown + kForced] = stats.forced;
    add_term(stats.score_sum, stats.score_sum.defined());
  }
  for (const auto& [name, entry] : aux_) {
    TROUPE_CHECK(std::ranges::find(kMoeLossNames, name) != kMoeLossNames.end(), "a loss", name);
  }
  for (const char* const name : kMoeLossNames) {
    const auto entry = aux_.find(name);
    entry == aux_.end() ? add_term({}, 0) : add_term(entry->second.first, entry->second.second);
  }
  if (fp8_saturated_.defined()) counts.push_back(fp8_saturated_);
  counts.push_back(at::tensor(known, at::kLong).to(device));
  const at::Tensor all_counts = sum(at::cat(counts)), all_terms = sum(at::cat(terms)).cpu();
  moe_.clear();
  aux_.clear();
  const at::Tensor is_known =
      all_counts.narrow(0, all_counts.numel() - std::ssize(known), std::ssize(known)).cpu();
  const auto* const knows = is_known.const_data_ptr<int64_t>();
  const auto* const term = all_terms.const_data_ptr<double>();
  int64_t at = 0;
  const auto take = [&](int64_t n) { return all_counts.narrow(0, std::exchange(at, at + n), n); };
  for (size_t i = 0; i < layers.size(); ++i) {
    MoeStats stats{.counts_E = take(layers[i].config.experts)};
    const at::Tensor dropped = take(1), saturated = take(1);
    const auto is = [&](Known what) { return knows[i * kKnown + what] > 0; };
    if (is(kDrops)) stats.dropped = dropped;
    if (is(kSaturates)) stats.saturated = saturated;
    if (is(kScores)) stats.score_sum = at::full({}, term[2 * i] / term[2 * i + 1], at::kDouble);
    stats.forced = is(kForced);
    moe_[layers[i].unit].push_back(std::move(stats));
  }
  if (fp8_saturated_.defined()) fp8_saturated_ = take(1);
  for (size_t i = 0; i < kMoeLossNames.size(); ++i) {
    const double* const entry = term + 2 * (layers.size() + i);
    if (entry[1] == 0) continue;
    aux_[kMoeLossNames[i]] = {at::full({}, entry[0], at::kDouble), static_cast<int64_t>(entry[1])};
  }
}

double Interval::loss() const {
  if (finite_ == 0) return std::numeric_limits<double>::quiet_NaN();
  return weight_ > 0 ? loss_ / weight_ : 0;
}
double Interval::step_seconds() const {
  return steps_ > 0 ? seconds_ / static_cast<double>(steps_) : 0;
}
double Interval::tokens_per_second() const {
  return seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0;
}
double Interval::wait_fraction() const {
  return seconds_ > 0 ? wait_ / seconds_ : 0;
}

std::vector<LayerLoad> Interval::loads() const {
  std::vector<LayerLoad> out;
  for (const auto& [unit, layers] : moe_) {
    for (const MoeStats& stats : layers) {
      const at::Tensor counts = stats.counts_E.to(at::kDouble).cpu();
      const auto* const begin = counts.const_data_ptr<double>();
      out.push_back({.layer = unit - 1,
                     .counts = std::vector<double>(begin, begin + counts.numel()),
                     .dropped = stats.dropped.defined() ? stats.dropped.item<double>() : 0,
                     .forced = stats.forced,
                     .saturated = stats.saturated.defined() ? stats.saturated.item<double>() : 0,
                     .score_sum = stats.score_sum.defined()
                                      ? std::optional(stats.score_sum.item<double>())
                                      : std::nullopt});
    }
  }
  return out;
}

std::map<std::string, double> Interval::aux() const {
  std::map<std::string, double> out;
  for (const auto& [name, entry] : aux_) {
    out[name] = entry.first.item<double>() / static_cast<double>(entry.second);
  }
  return out;
}

std::optional<int64_t> Interval::fp8_saturated() const {
  if (!fp8_saturated_.defined()) return std::nullopt;
  return fp8_saturated_.item<int64_t>();
}

void add_moe(LogRecord& record, const std::vector<LayerLoad>& loads,
             const std::map<std::string, double>& aux) {
  for (const auto& [name, value] : aux) record.add("moe/" + name, value);
  if (loads.empty()) return;
  std::vector<double> load, least, median, cv, dropped;
  double dead = 0, saturated = 0;
  std::optional<double> score_sum;  // the least
  for (const LayerLoad& layer : loads) {
    saturated += layer.saturated;
    if (layer.score_sum)
      score_sum = std::min(score_sum.value_or(*layer.score_sum), *layer.score_sum);
    load.push_back(layer.max_over_mean());
    least.push_back(layer.min_over_mean());
    median.push_back(layer.median_over_mean());
    cv.push_back(layer.cv());
    dropped.push_back(layer.dropped_fraction());
    dead += static_cast<double>(layer.dead());
  }
  record.add("moe/load", *std::max_element(load.begin(), load.end()));
  record.add("moe/cv", *std::max_element(cv.begin(), cv.end()));
  record.add("moe/dead", dead);
  record.add("moe/dropped", *std::max_element(dropped.begin(), dropped.end()));
  record.add("moe/load_layers", load);
  record.add("moe/min_layers", least);
  record.add("moe/median_layers", median);
  record.add("moe/cv_layers", cv);
  if (score_sum) record.add("moe/score_sum", *score_sum);
  if (saturated > 0) record.add("moe/saturated", saturated);
}

}  // namespace troupe
