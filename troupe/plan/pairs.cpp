#include "troupe/plan/pairs.h"

#include <cstdio>

#include "troupe/core/text/median.h"

namespace troupe {

std::vector<std::string> slow_pairs(const std::vector<PairRate>& pairs, double part) {
  std::vector<std::string> out;
  for (const bool one_host : {true, false}) {
    std::vector<double> rates;
    for (const PairRate& p : pairs) {
      if (p.one_host == one_host) rates.push_back(p.bandwidth);
    }
    if (rates.size() < 3) continue;
    const double usual = median(rates);
    for (const PairRate& p : pairs) {
      if (p.one_host != one_host || p.bandwidth >= part * usual) continue;
      char rest[128];
      std::snprintf(rest, sizeof(rest), "%.3g bytes/s is %.0f%% of the %.3g that half of %s reach",
                    p.bandwidth, 100 * p.bandwidth / usual, usual,
                    one_host ? "the pairs of one host" : "the pairs of two hosts");
      out.push_back("between rank " + std::to_string(p.a) + " and rank " + std::to_string(p.b) +
                    ": " + rest);
    }
  }
  return out;
}

}  // namespace troupe
