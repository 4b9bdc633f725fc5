#include "troupe/nn/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "troupe/core/check.h"
#include "troupe/core/number/rng.h"

namespace troupe {
namespace {

void penalize(std::vector<float>& logits, std::span<const int64_t> seen, double penalty) {
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

// Ids whose first `ranked` are those of the largest logits in their order, ties to the lower id.
// The first `kept` are among those that may be drawn.
struct Ranks {
  std::vector<int64_t> ids;
  size_t ranked, kept;
};

void rank(Ranks& r, const std::vector<float>& logits, size_t n) {
  const auto before = [&](int64_t a, int64_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  const auto at = [&](size_t i) { return r.ids.begin() + static_cast<std::ptrdiff_t>(i); };
  n = std::min(n, r.kept);
  if (n <= r.ranked) return;
  if (n < r.ids.size()) std::nth_element(at(r.ranked), at(n), r.ids.end(), before);
  std::sort(at(r.ranked), at(n), before);
  r.ranked = n;
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
  penalize(logits, seen, c.repetition_penalty);
  const auto best = std::ranges::max_element(logits);  // the first of equals
  if (c.temperature == 0) return best - logits.begin();
  const auto p = [&](int64_t id) { return std::exp((logits[id] - *best) / c.temperature); };
  Ranks r{std::vector<int64_t>(logits.size()), 0, logits.size()};
  std::iota(r.ids.begin(), r.ids.end(), 0);
  if (c.top_k > 0) r.kept = std::min(r.kept, static_cast<size_t>(c.top_k));
  if (r.kept < r.ids.size()) rank(r, logits, r.kept);
  double sum = 0;
  for (size_t i = 0; i < r.kept; ++i) sum += p(r.ids[i]);
  if (c.top_p < 1 || c.min_p > 0) {
    // Both limits cut a tail of the order; the nucleus ends where the sum reaches top_p.
    size_t keep = 0;
    double kept = 0;
    for (; keep < r.kept && (keep == 0 || kept < c.top_p * sum); ++keep) {
      if (keep == r.ranked) rank(r, logits, std::max<size_t>(64, 4 * keep));
      const double next = p(r.ids[keep]);
      if (keep > 0 && next < c.min_p) break;
      kept += next;
    }
    r.kept = keep;
    sum = kept;
  }
  const Rng rng(c.seed, stream_of("sample"));
  double left = rng.uniform(static_cast<uint64_t>(place.index), place.sequence) * sum;
  for (size_t i = 0; i + 1 < r.kept; ++i) {
    left -= p(r.ids[i]);
    if (left < 0) return r.ids[i];
  }
  return r.ids[r.kept - 1];
}

}  // namespace troupe
