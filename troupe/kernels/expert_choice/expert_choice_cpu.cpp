// The CPU path: scores by rows, then the C-th best of each column by partition, then weights by
// rows.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "troupe/core/number/fast_math.h"
#include "troupe/core/number/round.h"
#include "troupe/core/number/scores.h"
#include "troupe/core/number/top_k.h"
#include "troupe/kernels/expert_choice/expert_choice.h"

namespace troupe {
namespace {

using scores::exp_negative;
using scores::kTiny;

constexpr int64_t kRowsPerChunk = 64;

// A row's scores and, for backward, their slopes and the softmax.
template <class T>
class RowScores {
  using W = Wide<T>;

 public:
  explicit RowScores(int64_t experts)
      : z(experts), exp(experts), s(experts), slope(experts), softmax(experts) {}

  void compute(const T* row, Score score) {
    const auto E = static_cast<int64_t>(z.size());
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
#pragma omp simd reduction(max : top)
    for (int64_t e = 0; e < E; ++e) {
      z[e] = static_cast<W>(row[e]);
      top = z[e] > top ? z[e] : top;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < E; ++e) {
      exp[e] = exp_negative(z[e] - top);
      sum += exp[e];
    }
    lse = top + std::log(sum);
    for (int64_t e = 0; e < E; ++e) softmax[e] = static_cast<W>(exp[e] / sum);
    switch (score) {
      case Score::kSoftmax: std::copy(softmax.begin(), softmax.end(), s.begin()); return;
      case Score::kSigmoid: return score_each<Score::kSigmoid>();
      case Score::kSqrtSoftplus: return score_each<Score::kSqrtSoftplus>();
    }
  }

  std::vector<double> z, exp;
  std::vector<W> s, slope, softmax;
  double lse = 0;

 private:
  template <Score kScore>
  void score_each() {
    for (size_t e = 0; e < z.size(); ++e) {
      const scores::Slope both = scores::slope_of<kScore>(z[e]);
      s[e] = static_cast<W>(both.s);
      slope[e] = static_cast<W>(both.ds);
    }
  }
};

template <class T>
class Chooser {
  using W = Wide<T>;
  using Key = typename TopK<W>::Key;
  struct Candidate {
    Key key;
    int32_t token;
  };

 public:
  Chooser(const ExpertChoice& a, const Pool& pool)
      : a_(a),
        pool_(pool),
        T_(a.logits.rows),
        E_(a.logits.cols),
        chunks_(ceil_div(T_, kRowsPerChunk)),
        weights_(a.weights.as<W>()),
        keys_(T_ * E_),
        squares_(chunks_),
        broken_(T_) {}

  void run() {
    pool_(chunks_, 1, [&](int64_t begin, int64_t end) {
      RowScores<T> row(E_);
      for (int64_t c = begin; c < end; ++c) score_chunk(c, row);
    });
    pool_(E_, 1, [&](int64_t begin, int64_t end) {
      std::vector<Candidate> tokens;
      for (int64_t e = begin; e < end; ++e) {
        a_.given_ids == nullptr ? take(e, tokens) : take_given(e);
      }
    });
    pool_(T_, kRowsPerChunk, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) weigh(t);
    });
    double squares = 0;
    for (const double s : squares_) squares += s;
    *a_.lse_squares.as<W>().data = static_cast<W>(squares);
  }

 private:
  bool valid(int64_t t) const { return a_.valid == nullptr || a_.valid[t] != 0; }

  void score_chunk(int64_t c, RowScores<T>& row) {
    const auto logits = a_.logits.as<T>();
    for (int64_t t = c * kRowsPerChunk; t < std::min((c + 1) * kRowsPerChunk, T_); ++t) {
      std::fill_n(a_.ids + t * E_, E_, -1);
      if (!valid(t)) {
        for (int64_t e = 0; e < E_; ++e) keys_[e * T_ + t] = TopK<W>::kNone;
        continue;
      }
      row.compute(logits.row(t), a_.rule.score);
      broken_[t] = std::isnan(row.lse);
      squares_[c] += row.lse * row.lse;
      for (int64_t e = 0; e < E_; ++e) keys_[e * T_ + t] = TopK<W>::key_of(row.s[e]);
    }
  }

  void take(int64_t e, std::vector<Candidate>& tokens) {
    tokens.clear();
    for (int64_t t = 0; t < T_; ++t) {
      const Key key = keys_[e * T_ + t];
      if (key != TopK<W>::kNone) tokens.push_back({key, static_cast<int32_t>(t)});
    }
    const auto n = static_cast<int64_t>(tokens.size());
    const int64_t C = expert_choice_capacity(a_.rule.rho, n, E_);
    if (C < n) {
      std::nth_element(tokens.begin(), tokens.begin() + C, tokens.end(),
                       [](const Candidate& x, const Candidate& y) {
                         return x.key > y.key || (x.key == y.key && x.token < y.token);
                       });
    }
    for (int64_t i = 0; i < C; ++i) a_.ids[tokens[i].token * E_ + e] = static_cast<int32_t>(e);
    a_.counts[e] = C;
  }

  void take_given(int64_t e) {
    a_.counts[e] = 0;
    for (int64_t t = 0; t < T_; ++t) {
      if (!valid(t) || a_.given_ids[t * E_ + e] != e) continue;
      a_.ids[t * E_ + e] = static_cast<int32_t>(e);
      ++a_.counts[e];
    }
  }

  void weigh(int64_t t) {
    const int32_t* ids = a_.ids + t * E_;
    const auto s = [&](int64_t e) {
      return ids[e] < 0 ? W(0) : TopK<W>::value_of(keys_[e * T_ + t]);
    };
    W sum = kTiny;
    for (int64_t e = 0; a_.rule.normalize && e < E_; ++e) sum += s(e);
    const W scale = a_.rule.normalize ? a_.rule.scale / sum : W(a_.rule.scale);
    const W poison = broken_[t] ? std::numeric_limits<W>::quiet_NaN() : W(0);
    for (int64_t e = 0; e < E_; ++e) weights_(t, e) = ids[e] < 0 ? W(0) : s(e) * scale + poison;
  }

  const ExpertChoice& a_;
  const Pool& pool_;
  const int64_t T_, E_, chunks_;
  const Mat<W> weights_;
  std::vector<Key> keys_;  // [E, T]
  std::vector<double> squares_;
  std::vector<char> broken_;  // [T]
};

template <class T>
class RowGradient {
  using W = Wide<T>;

 public:
  explicit RowGradient(const ExpertChoiceBackward& a)
      : a_(a),
        E_(a.logits.cols),
        logits_(a.logits.as<T>()),
        out_(a.grad_logits.as<T>()),
        squares_(a.grad_lse_squares.data == nullptr ? W(0) : *a.grad_lse_squares.as<W>().data),
        row_(E_),
        grad_s_(E_) {}

  void run(int64_t t) {
    if (a_.valid != nullptr && a_.valid[t] == 0) {
      std::fill_n(out_.row(t), E_, T{});
      return;
    }
    row_.compute(logits_.row(t), a_.rule.score);
    score_gradients(t);
    const W squared = 2 * squares_ * static_cast<W>(row_.lse);
    const bool softmax = a_.rule.score == Score::kSoftmax;
    W mean = 0;
    for (int64_t e = 0; softmax && e < E_; ++e) mean += row_.s[e] * grad_s_[e];
    for (int64_t e = 0; e < E_; ++e) {
      const W slope = softmax ? row_.s[e] : row_.slope[e];
      put(out_.row(t)[e], slope * (grad_s_[e] - mean) + squared * row_.softmax[e]);
    }
  }

 private:
  void score_gradients(int64_t t) {
    const int32_t* ids = a_.ids + t * E_;
    W sum = kTiny, dot = 0;
    for (int64_t e = 0; e < E_; ++e) {
      const bool has = ids[e] >= 0 && a_.grad_weights.data != nullptr;
      grad_s_[e] = has ? a_.rule.scale * a_.grad_weights.as<W>()(t, e) : W(0);
      sum += ids[e] >= 0 ? row_.s[e] : W(0);
      dot += grad_s_[e] * row_.s[e];
    }
    if (!a_.rule.normalize) return;
    const W scale = 1 / sum;
    for (int64_t e = 0; e < E_; ++e) {
      grad_s_[e] = ids[e] < 0 ? W(0) : (grad_s_[e] - dot * scale) * scale;
    }
  }

  const ExpertChoiceBackward& a_;
  const int64_t E_;
  const Mat<const T> logits_;
  const Mat<T> out_;
  const W squares_;
  RowScores<T> row_;
  std::vector<W> grad_s_;
};

}  // namespace

void expert_choice_cpu(const ExpertChoice& a, const Pool& pool) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() { Chooser<T>(a, pool).run(); });
}

void expert_choice_backward_cpu(const ExpertChoiceBackward& a, const Pool& pool) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    pool(a.logits.rows, kRowsPerChunk, [&](int64_t begin, int64_t end) {
      RowGradient<T> row(a);
      for (int64_t t = begin; t < end; ++t) row.run(t);
    });
  });
}

}  // namespace troupe
