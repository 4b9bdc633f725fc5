// The CPU path: a row is scored, chosen from, weighed and summed while it is in cache. Rows are
// shared out in chunks of fixed size; a chunk's float sums are its own and are added up in order.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "troupe/core/number/fast_math.h"
#include "troupe/core/number/top_k.h"
#include "troupe/kernels/route/geometry.h"
#include "troupe/kernels/route/weigh.h"

namespace troupe {
namespace {

using route_detail::Chunks;
using route_detail::ChunkTotals;

constexpr int64_t kRowsPerChunk = 64;
constexpr int64_t kColumnsPerRange = 256;

template <class W>
constexpr W kLowest = -std::numeric_limits<W>::infinity();

// Where the float sums of chunks are, until they are added up.
template <class W>
struct Sums {
  Sums(const Route& a, const Chunks& chunks)
      : probs(a.probs.data == nullptr ? 0 : chunks.count * a.logits.cols), totals(chunks.count) {}
  std::vector<W> probs;  // [chunks, E]
  std::vector<ChunkTotals> totals;
};

template <class T>
class ChunkRouter {
  using W = Wide<T>;

 public:
  ChunkRouter(const Route& a, Sums<W>& sums)
      : a_(a),
        E_(a.logits.cols),
        K_(a.rule.choices),
        logits_(a.logits.as<T>()),
        weights_(a.weights.as<W>()),
        lse_out_(a.lse.as<W>().data),
        sums_(sums),
        z_(E_),
        s_(E_),
        plain_ids_(a.is_plain() ? 0 : K_),
        experts_(E_),
        group_(E_ / a.rule.groups),
        groups_(a.rule.groups),
        open_(a.rule.groups),
        seen_(a.given_ids == nullptr ? 0 : E_, -1),
        counts_(E_),
        plain_counts_(a.probs.data == nullptr ? 0 : E_) {}

  void run(int64_t chunk, const Chunks::Span& span) {
    totals_ = {};
    std::fill(plain_counts_.begin(), plain_counts_.end(), 0);
    W* probs = sums_.probs.data() + (sums_.probs.empty() ? 0 : chunk * E_);
    for (int64_t t = span.begin; t < span.end; ++t) {
      if (a_.valid != nullptr && a_.valid[t] == 0) {
        skip(t);
      } else {
        route(t, probs);
      }
    }
    sums_.totals[chunk] = totals_;
    if (!plain_counts_.empty()) add_counts(plain_counts_, a_.plain_counts + span.sequence * E_);
  }
  void finish() const { add_counts(counts_, a_.counts); }

 private:
  void skip(int64_t t) {
    std::fill_n(a_.ids + t * K_, K_, -1);
    std::fill_n(weights_.row(t), K_, W(0));
    lse_out_[t] = 0;
  }

  void route(int64_t t, W* probs) {
    score(t);
    lse_out_[t] = lse_;
    ++totals_.tokens;
    totals_.lse_squares += static_cast<double>(lse_) * lse_;
    int32_t* ids = a_.ids + t * K_;
    const bool sound = choose(t, ids);
    weigh(ids, weights_.row(t), sound && !std::isnan(lse_));
    for (int64_t j = 0; j < K_; ++j) {
      if (ids[j] >= 0) ++counts_[ids[j]];
    }
    if (plain_counts_.empty()) return;
    const W scale = 1 / (softmax() ? W(1) : score_sum_ + scores::kTiny);
    for (int64_t e = 0; e < E_; ++e) probs[e] += s_[e] * scale;
    if (!a_.is_plain()) {
      set_keys(softmax() ? z_ : s_, nullptr);
      ids = plain_ids_.data();
      take(ids);
    }
    for (int64_t j = 0; j < K_; ++j) ++plain_counts_[ids[j]];
  }

  bool softmax() const { return a_.rule.score == Score::kSoftmax; }

  // z_, s_, top_, lse_ and, except for the softmax, score_sum_.
  void score(int64_t t) {
    const T* row = logits_.row(t);
    W top = kLowest<W>, sum = 0;
#pragma omp simd reduction(max : top)
    for (int64_t e = 0; e < E_; ++e) {
      const W z = static_cast<W>(row[e]);
      z_[e] = z;
      top = z > top ? z : top;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < E_; ++e) {
      s_[e] = fast::exp(z_[e] - top);
      sum += s_[e];
    }
    top_ = top;
    lse_ = top + std::log(sum);
    switch (a_.rule.score) {
      case Score::kSoftmax: {
        const W scale = 1 / sum;
        for (int64_t e = 0; e < E_; ++e) s_[e] *= scale;
        return;
      }
      case Score::kSigmoid: return score_each<Score::kSigmoid>();
      case Score::kSqrtSoftplus: return score_each<Score::kSqrtSoftplus>();
    }
  }
  template <Score kScore>
  void score_each() {
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < E_; ++e) {
      s_[e] = static_cast<W>(scores::score_of<kScore>(z_[e]));
      sum += s_[e];
    }
    score_sum_ = sum;
  }

  // Returns whether the choice is sound: only given ones can be otherwise.
  bool choose(int64_t t, int32_t* ids) {
    if (a_.given_ids != nullptr) return take_given(t, ids);
    const bool from_logits = softmax() || a_.beta != nullptr;
    set_keys(from_logits ? z_ : s_, from_logits ? a_.beta : a_.bias);
    if (a_.rule.groups > 1) close_groups();
    take(ids);
    return true;
  }

  bool take_given(int64_t t, int32_t* ids) {
    bool sound = true;
    for (int64_t j = 0; j < K_; ++j) {
      const int32_t id = a_.given_ids[t * K_ + j];
      const bool exists = 0 <= id && id < E_;
      sound = sound && exists && seen_[id] != t;
      ids[j] = exists ? id : -1;
      if (exists) seen_[id] = t;
    }
    return sound;
  }

  // `shift` is the bias, added to scores, or beta, taken from logits; null for the plain choice.
  void set_keys(const std::vector<W>& from, const float* shift) {
    auto* keys = experts_.keys();
    if (shift == nullptr) {
      for (int64_t e = 0; e < E_; ++e) keys[e] = TopK<W>::key_of(from[e]);
      return;
    }
    const W sign = shift == a_.beta ? W(-1) : W(1);
    for (int64_t e = 0; e < E_; ++e) {
      keys[e] = TopK<W>::key_of(from[e] + sign * static_cast<W>(shift[e]));
    }
  }

  void take(int32_t* ids) {
    experts_.start(E_);
    for (int64_t j = 0; j < K_; ++j) ids[j] = experts_.take().index;
  }

  void close_groups() {
    const int64_t size = E_ / a_.rule.groups;
    for (int64_t g = 0; g < a_.rule.groups; ++g) {
      groups_.keys()[g] = TopK<W>::key_of(group_score(g * size, size));
    }
    groups_.start(a_.rule.groups);
    std::fill(open_.begin(), open_.end(), false);
    for (int64_t i = 0; i < a_.rule.keep_groups; ++i) open_[groups_.take().index] = true;
    for (int64_t g = 0; g < a_.rule.groups; ++g) {
      if (!open_[g]) std::fill_n(experts_.keys() + g * size, size, TopK<W>::kNone);
    }
  }

  W group_score(int64_t begin, int64_t size) {
    if (softmax() && a_.rule.weighting != Weighting::kChosen) {
      for (int64_t i = 0; i < size; ++i) {
        const double x = double{z_[begin + i]} - top_;
        group_.keys()[i] = TopK<W>::key_of(static_cast<W>(scores::exp_negative(x)));
      }
    } else {
      std::copy_n(experts_.keys() + begin, size, group_.keys());
    }
    group_.start(size);
    W sum = 0;
    for (int64_t i = 0; i < a_.rule.group_best; ++i) sum += TopK<W>::value_of(group_.take().key);
    return sum;
  }

  void weigh(const int32_t* ids, W* weights, bool sound) {
    const route_detail::OverLoop<W> over{K_};
    const W* worth = a_.rule.weighting == Weighting::kChosen ? z_.data() : s_.data();
    const W broken = std::numeric_limits<W>::quiet_NaN();
    const auto value = [&](int64_t j) { return sound ? worth[ids[j]] : broken; };
    const auto norm = route_detail::norm_of<W>(a_.rule, over, value);
    for (int64_t j = 0; j < K_; ++j) {
      weights[j] = a_.rule.scale * route_detail::weight_of(a_.rule, norm, value(j));
      if (ids[j] >= 0) totals_.kept_scores += s_[ids[j]];
    }
  }

  // Integer sums: the same in any order.
  static void add_counts(const std::vector<int64_t>& from, int64_t* to) {
    for (size_t e = 0; e < from.size(); ++e) {
      if (from[e] != 0) std::atomic_ref(to[e]).fetch_add(from[e]);
    }
  }

  const Route& a_;
  const int64_t E_, K_;
  const Mat<const T> logits_;
  const Mat<W> weights_;
  W* const lse_out_;
  Sums<W>& sums_;
  std::vector<W> z_, s_;  // logits and scores of the row at hand
  W top_ = 0, lse_ = 0, score_sum_ = 0;
  std::vector<int32_t> plain_ids_;
  TopK<W> experts_, group_, groups_;
  std::vector<char> open_;     // [groups]
  std::vector<int64_t> seen_;  // [E] the last token that was given this expert
  std::vector<int64_t> counts_, plain_counts_;
  ChunkTotals totals_;
};

template <class W>
void add_up(const Route& a, const Chunks& chunks, const Sums<W>& sums, const Pool& pool) {
  double lse_squares = 0, kept_scores = 0;
  std::fill_n(a.tokens, a.sequences, 0);
  for (int64_t c = 0; c < chunks.count; ++c) {
    lse_squares += sums.totals[c].lse_squares;
    kept_scores += sums.totals[c].kept_scores;
    a.tokens[c / chunks.per_sequence] += sums.totals[c].tokens;
  }
  *a.lse_squares.as<W>().data = static_cast<W>(lse_squares);
  *a.kept_scores.as<W>().data = static_cast<W>(kept_scores);
  if (a.probs.data == nullptr) return;
  const int64_t E = a.logits.cols;
  const auto probs = a.probs.as<W>();
  pool(E, kColumnsPerRange, [&](int64_t begin, int64_t end) {
    std::vector<double> sum(end - begin);
    for (int64_t b = 0; b < a.sequences; ++b) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int64_t c = b * chunks.per_sequence; c < (b + 1) * chunks.per_sequence; ++c) {
        for (int64_t e = begin; e < end; ++e) sum[e - begin] += sums.probs[c * E + e];
      }
      for (int64_t e = begin; e < end; ++e) probs(b, e) = static_cast<W>(sum[e - begin]);
    }
  });
}

}  // namespace

void route_cpu(const Route& a, const Pool& pool) {
  validate(a);
  const int64_t E = a.logits.cols;
  const Chunks chunks = route_detail::cut(a.logits.rows, a.sequences, kRowsPerChunk);
  std::fill_n(a.counts, E, 0);
  if (a.probs.data != nullptr) std::fill_n(a.plain_counts, a.sequences * E, 0);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    Sums<Wide<T>> sums(a, chunks);
    pool(chunks.count, 1, [&](int64_t begin, int64_t end) {
      ChunkRouter<T> router(a, sums);
      for (int64_t c = begin; c < end; ++c) router.run(c, chunks.span(c));
      router.finish();
    });
    add_up(a, chunks, sums, pool);
  });
}

}  // namespace troupe
