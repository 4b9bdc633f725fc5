#include "troupe/train/observe/stragglers.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>

namespace troupe {
namespace {

constexpr double kFactor = 1.5, kPartOfTime = 0.1, kWindowSeconds = 1;
constexpr int64_t kWindowSteps = 5;

double total(const OwnSeconds& x) {
  return std::accumulate(x.begin(), x.end(), 0.0);
}

double median_without(const std::vector<OwnSeconds>& ranks, size_t left_out,
                      const std::function<double(const OwnSeconds&)>& of) {
  std::vector<double> values;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (r != left_out) values.push_back(of(ranks[r]));
  }
  const auto middle = values.begin() + static_cast<int64_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The slowest of them, if it stands out.
std::optional<Straggler> slowest(const std::vector<OwnSeconds>& ranks, int64_t steps, double wall) {
  const auto most = std::max_element(
      ranks.begin(), ranks.end(),
      [](const OwnSeconds& a, const OwnSeconds& b) { return total(a) < total(b); });
  const auto r = static_cast<size_t>(most - ranks.begin());
  const double median = median_without(ranks, r, total);
  if (total(*most) < kFactor * median || total(*most) - median < kPartOfTime * wall) return {};
  Straggler out{.rank = static_cast<int64_t>(r),
                .factor = total(*most) / std::max(median, 1e-9),
                .phase = {}};
  double furthest = 0;
  for (size_t p = 0; p < most->size(); ++p) {
    const double others = median_without(ranks, r, [p](const OwnSeconds& x) { return x[p]; });
    if ((*most)[p] - others <= furthest) continue;
    furthest = (*most)[p] - others;
    out.phase = kOwnPhases[p];
    out.seconds = (*most)[p] / static_cast<double>(steps);
    out.median = others / static_cast<double>(steps);
  }
  return out;
}

// The one that stands out most among those that have the same work.
std::optional<Straggler> slowest(const std::vector<OwnSeconds>& ranks, int64_t steps, double wall,
                                 const std::vector<std::vector<int64_t>>& alike) {
  if (alike.empty()) return slowest(ranks, steps, wall);
  std::optional<Straggler> out;
  for (const std::vector<int64_t>& group : alike) {
    if (group.size() < 2) continue;
    std::vector<OwnSeconds> own;
    for (const int64_t rank : group) own.push_back(ranks[static_cast<size_t>(rank)]);
    std::optional<Straggler> found = slowest(own, steps, wall);
    if (!found || (out && out->factor >= found->factor)) continue;
    found->rank = group[static_cast<size_t>(found->rank)];
    out = found;
  }
  return out;
}

}  // namespace

void add_own_seconds(LogRecord& record, const std::vector<OwnSeconds>& ranks, int64_t steps) {
  if (ranks.empty() || steps == 0) return;
  const auto add = [&](std::string_view name, const std::function<double(const OwnSeconds&)>& of) {
    double least = of(ranks.front()), most = least;
    for (const OwnSeconds& rank : ranks) {
      least = std::min(least, of(rank));
      most = std::max(most, of(rank));
    }
    const std::string key = "ranks/" + std::string(name);
    record.add(key + "_min_s", least / static_cast<double>(steps));
    record.add(key + "_max_s", most / static_cast<double>(steps));
  };
  add("own", total);
  for (size_t p = 0; p < kOwnPhases.size(); ++p) {
    add(kOwnPhases[p], [p](const OwnSeconds& x) { return x[p]; });
  }
}

void Stragglers::add(const StepSeconds& step, double batch) {
  const OwnSeconds now = {batch, step.own.forward, step.own.backward, step.own.reduce,
                          step.own.update};
  for (size_t p = 0; p < now.size(); ++p) own_[p] += now[p];
}

OwnSeconds Stragglers::take() {
  return std::exchange(own_, {});
}

bool Stragglers::judge(const std::vector<OwnSeconds>& ranks, int64_t steps, double wall,
                       const std::vector<std::vector<int64_t>>& alike) {
  if (ranks.size() < 2) return false;
  window_.resize(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t p = 0; p < kOwnPhases.size(); ++p) window_[r][p] += ranks[r][p];
  }
  steps_ += steps;
  wall_ += wall;
  if (steps_ < kWindowSteps || wall_ < kWindowSeconds) return false;
  const std::optional<Straggler> now = slowest(window_, steps_, wall_, alike);
  const bool again = now && last_ && now->rank == last_->rank;
  last_ = now;
  window_.clear();
  steps_ = 0;
  wall_ = 0;
  const bool known = slow_ && now && slow_->rank == now->rank;
  if (known || (!slow_ && !again)) return false;
  slow_ = again ? now : std::nullopt;
  return true;
}

}  // namespace troupe
