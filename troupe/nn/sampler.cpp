#include "troupe/nn/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "troupe/core/check.h"
#include "troupe/core/number/rng.h"

namespace troupe {
namespace {

void penalise(std::vector<float>& logits, std::span<const int64_t> seen, double penalty) {
  if (penalty == 1) return;
  std::vector<int64_t> once(seen.begin(), seen.end());
  std::sort(once.begin(), once.end());
  once.erase(std::unique(once.begin(), once.end()), once.end());
  const auto r = static_cast<float>(penalty);
  for (const int64_t id : once) {
    float& z = logits.at(id);
    z = z > 0 ? z / r : z * r;
  }
}

// Ids in the order of their logits, the largest first, ties to the lower id.
std::vector<int64_t> ranked(const std::vector<float>& logits, int64_t top_k) {
  std::vector<int64_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto before = [&](int64_t a, int64_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  const auto all = static_cast<int64_t>(ids.size());
  const int64_t keep = top_k > 0 ? std::min(top_k, all) : all;
  std::partial_sort(ids.begin(), ids.begin() + keep, ids.end(), before);
  ids.resize(keep);
  return ids;
}

}  // namespace

void validate(const SampleConfig& c) {
  const auto require = [](bool holds, const char* what, double value) {
    if (!holds) fail(Code::kBadValue, what, "is", value);
  };
  require(c.temperature >= 0, "temperature", c.temperature);
  require(c.top_k >= 0, "top_k", static_cast<double>(c.top_k));
  require(0 < c.top_p && c.top_p <= 1, "top_p", c.top_p);
  require(0 <= c.min_p && c.min_p <= 1, "min_p", c.min_p);
  require(c.repetition_penalty > 0, "repetition_penalty", c.repetition_penalty);
}

int64_t sample(std::vector<float> logits, std::span<const int64_t> seen, const SampleConfig& c,
               const DrawPlace& place) {
  TROUPE_CHECK(!logits.empty(), "no logits");
  for (const float z : logits) TROUPE_CHECK(!std::isnan(z), "a logit is NaN");
  penalise(logits, seen, c.repetition_penalty);
  if (c.temperature == 0) return ranked(logits, 1)[0];
  std::vector<int64_t> ids = ranked(logits, c.top_k);
  std::vector<double> p(ids.size());
  double sum = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    p[i] = std::exp((logits[ids[i]] - logits[ids[0]]) / c.temperature);
    sum += p[i];
  }
  size_t keep = 0;
  double kept = 0;
  // Both limits cut a tail, since p falls; the nucleus ends where the sum reaches top_p.
  while (keep < ids.size() && (keep == 0 || (kept < c.top_p * sum && p[keep] >= c.min_p * p[0]))) {
    kept += p[keep++];
  }
  const Rng rng(c.seed, stream_of("sample"));
  double left = rng.uniform(static_cast<uint64_t>(place.index), place.sequence) * kept;
  for (size_t i = 0; i + 1 < keep; ++i) {
    left -= p[i];
    if (left < 0) return ids[i];
  }
  return ids[keep - 1];
}

}  // namespace troupe
