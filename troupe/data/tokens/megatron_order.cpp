#include "troupe/data/tokens/megatron_order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "troupe/core/check.h"
#include "troupe/core/number/round.h"
#include "troupe/core/text/text.h"
#include "troupe/data/tokens/numpy.h"

namespace troupe {
namespace {

std::vector<double> normalized(std::span<const double> weights) {
  std::vector<double> out(weights.begin(), weights.end());
  const double sum = numpy_sum(weights);
  for (double& weight : out) weight /= sum;
  return out;
}

void shuffle_range(std::mt19937& generator, std::vector<uint32_t>& values, int64_t begin,
                   int64_t end) {
  numpy_shuffle(generator, std::span(values).subspan(static_cast<size_t>(begin),
                                                     static_cast<size_t>(end - begin)));
}

}  // namespace

std::array<int64_t, 4> split_bounds(const std::string& split, int64_t n) {
  std::array<double, 3> parts{};
  size_t begin = 0, count = 0;
  while (begin <= split.size()) {
    const size_t end = std::min(split.find(',', begin), split.size());
    if (count == 3 ||
        !from_text(std::string_view(split).substr(begin, end - begin), parts[count]) ||
        parts[count] < 0) {
      fail(Code::kBadValue, "split", to_text(split), "is not one to three numbers as in 969,30,1");
    }
    ++count;
    begin = end + 1;
  }
  const double sum = numpy_sum(parts);
  if (!(sum > 0)) fail(Code::kBadValue, "split", to_text(split), "has the sum 0");
  std::array<int64_t, 4> out{};
  double bound = 0;
  for (size_t p = 0; p < 3; ++p) {
    bound += parts[p] / sum;
    out[p + 1] = static_cast<int64_t>(std::nearbyint(bound * static_cast<double>(n)));
  }
  return out;
}

MegatronIndex::MegatronIndex(std::span<const int32_t> lengths, const MegatronNeeds& needs)
    : sequence_(needs.sequence) {
  const int64_t L = needs.sequence;
  const int64_t T = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  TROUPE_CHECK(L > 0, L);
  TROUPE_CHECK(std::ssize(lengths) < std::numeric_limits<int32_t>::max(), lengths.size());
  if (T == 0) fail(Code::kTooFewTokens, "data", "no tokens in", lengths.size(), "sequences");
  if (needs.samples) epochs_ = std::max<int64_t>(1, ceil_div(*needs.samples * L + 1, T));
  const int64_t n = (epochs_ * T - 1) / L;
  if (n == 0) {
    fail(Code::kTooFewTokens, "data", T, "tokens; a sample needs", L + 1);
  }
  TROUPE_CHECK(n < std::numeric_limits<uint32_t>::max() - 1, n, "samples");
  const int64_t sans = ((epochs_ - 1) * T - 1) / L, per = (T - 1) / L;
  if (epochs_ > 1) {
    separate_ = *needs.samples - sans < static_cast<int64_t>(0.80 * static_cast<double>(per));
  }

  std::mt19937 generator(needs.seed);
  const int64_t S = std::ssize(lengths);
  documents_.resize(static_cast<size_t>(S * epochs_));
  for (size_t i = 0; i < documents_.size(); ++i) {
    documents_[i] = static_cast<int32_t>(static_cast<int64_t>(i) % S);
  }
  const auto first = static_cast<size_t>(S * (epochs_ - (separate_ ? 1 : 0)));
  numpy_shuffle(generator, std::span(documents_).first(first));
  if (separate_) numpy_shuffle(generator, std::span(documents_).subspan(first));

  begins_.reserve(documents_.size() + 1);
  begins_.push_back(0);
  for (const int32_t document : documents_) {
    begins_.push_back(begins_.back() + lengths[static_cast<size_t>(document)]);
  }
  shuffle_.resize(static_cast<size_t>(n));
  std::iota(shuffle_.begin(), shuffle_.end(), 0u);
  const int64_t m = separate_ ? sans : n;
  shuffle_range(generator, shuffle_, 0, m);
  if (separate_) shuffle_range(generator, shuffle_, m, n);
}

// The sequence that holds the token; where there are empty ones, never one of these.
std::pair<int64_t, int64_t> MegatronIndex::locate(int64_t token) const {
  const auto above = std::upper_bound(begins_.begin(), begins_.end(), token);
  const int64_t position = above - begins_.begin() - 1;
  // Megatron's first row is (0, 0) even if that sequence is empty.
  if (token == 0) return {0, 0};
  return {position, token - begins_[static_cast<size_t>(position)]};
}

std::vector<MegatronIndex::TokenPiece> MegatronIndex::sample(int64_t i) const {
  TROUPE_CHECK(0 <= i && i < num_samples(), i, "of", num_samples());
  auto [position, offset] = sample_index(shuffle_[static_cast<size_t>(i)]);
  std::vector<TokenPiece> out;
  for (int64_t left = sequence_ + 1; left > 0; ++position, offset = 0) {
    const auto p = static_cast<size_t>(position);
    const int64_t count = std::min(left, begins_[p + 1] - begins_[p] - offset);
    if (count > 0) out.push_back({documents_[p], offset, count});
    left -= count;
  }
  return out;
}

void megatron_blend_indices(std::span<const double> weights, std::span<int16_t> dataset,
                            std::span<int64_t> index) {
  std::vector<int64_t> taken(weights.size());
  for (size_t i = 0; i < dataset.size(); ++i) {
    const double n = std::max(static_cast<double>(i), 1.0);
    size_t best = 0;
    double most = weights[0] * n - static_cast<double>(taken[0]);
    for (size_t d = 1; d < weights.size(); ++d) {
      const double error = weights[d] * n - static_cast<double>(taken[d]);
      if (error > most) most = error, best = d;
    }
    dataset[i] = static_cast<int16_t>(best);
    index[i] = taken[best]++;
  }
}

MegatronBlend::MegatronBlend(std::span<const double> weights, int64_t samples) {
  TROUPE_CHECK(weights.size() <= 32767, weights.size(), "data sets");
  const std::vector<double> once = normalized(weights);
  int64_t length = 0;
  for (const double weight : once) {
    const double wanted = std::ceil(static_cast<double>(samples) * weight);
    length += static_cast<int64_t>(wanted);
    built.push_back(static_cast<int64_t>(std::ceil(wanted * (1 + 0.005))));
  }
  dataset.resize(static_cast<size_t>(length));
  index.resize(dataset.size());
  megatron_blend_indices(normalized(once), dataset, index);  // Normalized again, as Megatron does.
}

}  // namespace troupe
