#include "troupe/plan/machine.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/counts.h"
#include "troupe/core/text/median.h"

namespace troupe {
namespace {

// One rank's share of the links between hosts.
Link across(const Machine& m, int64_t hosts) {
  const double left = 1 - m.derate * std::log10(static_cast<double>(hosts));
  return {.bandwidth = m.between.bandwidth * std::max(left, 0.05), .latency = m.between.latency};
}

constexpr CountBound kMachineBounds[] = {{"ranks_per_host", 1 << 16}};
constexpr double kMostRate = 1e30;  // of all numbers: sums and products of a few are finite

// One rank has measured no link: its file is fit for plans of one rank.
void require_bandwidth(const Machine& m, const Link& link, const std::string& which) {
  if (link.bandwidth > 0) return;
  fail(Code::kBadValue, "machine " + m.name, "has no", which + ".bandwidth, which several ranks",
       "need: bytes a second out of a rank to others",
       which == "inside" ? "of its host." : "of other hosts.",
       "`troupe launch -n N -- bench machine` measures it");
}

struct Rate {
  const char* name;
  double Machine::*value;
};
constexpr Rate kRates[] = {{"products", &Machine::products},
                           {"experts", &Machine::experts},
                           {"attention", &Machine::attention},
                           {"bandwidth", &Machine::bandwidth}};

std::string share(double found, double wanted) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.3g is %.0f%% of the %.3g", found, 100 * found / wanted,
                wanted);
  return text;
}

}  // namespace

std::vector<std::string> slow_parts(const std::vector<Machine>& ranks, const Machine* expected,
                                    double part) {
  std::vector<std::string> out;
  for (const auto& [name, value] : kRates) {
    std::vector<double> all;
    for (const Machine& m : ranks) all.push_back(m.*value);
    const double usual = median(all);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::string who = "rank " + std::to_string(rank) + ": " + name + ' ';
      const double found = ranks[rank].*value;
      if (expected != nullptr && found < part * expected->*value) {
        out.push_back(who + share(found, expected->*value) + " that are expected");
      } else if (ranks.size() > 2 && found < part * usual) {
        out.push_back(who + share(found, usual) + " that half of the ranks reach");
      }
    }
  }
  const double link = ranks.front().inside.bandwidth;
  if (ranks.size() > 1 && expected != nullptr && link < part * expected->inside.bandwidth) {
    out.push_back("between ranks: inside.bandwidth " + share(link, expected->inside.bandwidth) +
                  " that are expected");
  }
  return out;
}

double expected_holders(double n, double K) {
  return n * (1 - std::pow(1 - 1 / n, K));
}

Machine load_machine(const std::string& path) {
  Machine m;
  read_config(load_yaml(path), m);
  std::string faults;
  const auto needs = [&](bool good, const char* what) {
    if (!good) faults.append(faults.empty() ? "" : ", ").append(what);
  };
  needs(m.peak == 0 || m.peak >= m.products, "peak must be what the data sheet says, or left out");
  needs(m.products > 0, "products must be FLOP/s above 0");
  needs(m.bandwidth > 0, "bandwidth must be bytes a second above 0");
  needs(m.ranks_per_host > 0, "ranks_per_host must be at least 1");
  for (const CountFault& fault : counts_out_of_bounds(m, kMachineBounds)) {
    needs(false, (fault.path + ' ' + fault.what).c_str());
  }
  Machine::visit(m, [&](const std::string& name, const auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
      needs(std::abs(value) <= kMostRate, (name + " is beyond any machine's").c_str());
    }
  });
  for (const Link& link : {m.inside, m.between}) {
    needs(link.bandwidth >= 0 && link.bandwidth <= kMostRate && link.latency >= 0 &&
              link.latency <= kMostRate,
          "bandwidth and latency of a link must not be negative, nor beyond any machine's");
  }
  needs(m.imbalance >= 1, "imbalance must be at least 1");
  needs(m.summing > 0 && m.exchanging > 0, "summing and exchanging must be above 0");
  needs(m.dispatch >= 0, "dispatch must not be negative");
  needs(m.host_link >= 0, "host_link must be bytes a second above 0, or left out");
  needs(m.jitter >= 0 && m.derate >= 0 && m.overhead >= 0 && m.contention >= 0,
        "jitter, derate, overhead, contention must not be negative");
  if (!faults.empty()) fail(Code::kBadValue, path, faults + ". `troupe bench machine` writes one");
  if (m.experts <= 0) m.experts = m.products;
  if (m.attention <= 0) m.attention = m.products;
  return m;
}

Machine assumed_machine(bool gpu) {
  if (gpu) {
    return {.name = "hosts of 8 H100 (assumed)",
            .memory = 8.5e10,
            .peak = 9.895e14,
            .products = 6.0e14,
            .experts = 5.2e14,
            .attention = 4.0e14,
            .bandwidth = 3.0e12,
            .overhead = 3.0e-5,
            .inside = {.bandwidth = 3.3e11, .latency = 1.2e-5},
            .between = {.bandwidth = 4.2e10, .latency = 1.2e-5},
            .contention = 0.5,
            .dispatch = 1.0e-4,
            .jitter = 0.004,
            .derate = 0.06,
            .imbalance = 1.06};
  }
  return {.name = "processes of a host (assumed)",
          .gpu = false,
          .memory = 1.6e10,
          .products = 4.0e10,
          .experts = 4.0e10,
          .attention = 2.0e10,
          .bandwidth = 5.0e9,
          .overhead = 1.0e-4,
          .inside = {.bandwidth = 1.0e9, .latency = 2.0e-4},
          .between = {.bandwidth = 2.0e8, .latency = 5.0e-4},
          .jitter = 0.004,
          .derate = 0.06,
          .imbalance = 1.06};
}

double gather_seconds(const Machine& m, const GroupTopology& group, double whole) {
  if (group.ranks <= 1 || whole <= 0) return 0;
  const Link link = group.hosts > 1 ? across(m, group.hosts) : m.inside;
  require_bandwidth(m, link, group.hosts > 1 ? "between" : "inside");
  const auto others = static_cast<double>(group.ranks - 1);
  const double out = whole * others / static_cast<double>(group.ranks);
  return others * link.latency + out / link.bandwidth;
}

double exchange_seconds(const Machine& m, const GroupTopology& group, double out) {
  if (group.ranks <= 1) return 0;
  const auto ranks = static_cast<double>(group.ranks), hosts = static_cast<double>(group.hosts);
  const double far = (ranks - ranks / hosts) / (ranks - 1);
  double seconds = 0;
  if (far < 1) {
    require_bandwidth(m, m.inside, "inside");
    seconds = m.inside.latency + m.exchanging * out * (1 - far) / m.inside.bandwidth;
  }
  if (far == 0) return seconds;
  const Link link = across(m, group.hosts);
  require_bandwidth(m, link, "between");
  return std::max(seconds, link.latency + m.exchanging * out * far / link.bandwidth);
}

}  // namespace troupe
