#include "troupe/train/observe/metrics.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>

#include <algorithm>
#include <limits>

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
}

void Interval::add_other_ranks(const SumOver& sum) {
  if (!sum) return;
  for (auto& [unit, layers] : moe_) {
    for (MoeStats& stats : layers) {
      for (at::Tensor* x : {&stats.counts_E, &stats.dropped, &stats.saturated}) {
        if (x->defined()) *x = sum(*x);
      }
    }
  }
  for (auto& [name, entry] : aux_) {
    const at::Tensor terms = at::full_like(entry.first, static_cast<double>(entry.second));
    entry.first = sum(entry.first);
    entry.second = sum(terms).item<int64_t>();
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
                     .forced = stats.forced});
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

void add_moe(Record& record, const std::vector<LayerLoad>& loads,
             const std::map<std::string, double>& aux) {
  for (const auto& [name, value] : aux) record.add("moe/" + name, value);
  if (loads.empty()) return;
  std::vector<double> load, cv, dropped;
  double dead = 0;
  for (const LayerLoad& layer : loads) {
    load.push_back(layer.max_over_mean());
    cv.push_back(layer.cv());
    dropped.push_back(layer.dropped_fraction());
    dead += static_cast<double>(layer.dead());
  }
  record.add("moe/load", *std::max_element(load.begin(), load.end()));
  record.add("moe/cv", *std::max_element(cv.begin(), cv.end()));
  record.add("moe/dead", dead);
  record.add("moe/dropped", *std::max_element(dropped.begin(), dropped.end()));
  record.add("moe/load_layers", load);
}

}  // namespace troupe
