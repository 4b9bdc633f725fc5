// The CPU path of the gradient: a row's scores are computed again, and its gradient is written in
// one pass over the experts and one over the choices.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "troupe/core/number/fast_math.h"
#include "troupe/kernels/route/weigh.h"

namespace troupe {
namespace {

using scores::kTiny;

constexpr int64_t kRowsPerRange = 64;

// With c_j the gradient of the j-th chosen value (weigh.h), G = grad_probs[b, :] and
// l = 2 grad_lse_squares lse:
//   softmax  dz_e = s_e (G'_e - sum G' s + l) with G'_e = G_e + c_j where e = I_j; added up first,
//            so that the one expert of E = 1 gets exactly 0 (L5)
//            for kChosen G' = G, and c_j itself is added where e = I_j
//   others   dz_e = s'_e (G_e - sum G r) / (sum s + 1e-20) + l softmax_e + s'_Ij c_j where e = I_j
template <class T>
class RowGradient {
  using W = Wide<T>;

 public:
  explicit RowGradient(const RouteBackward& a)
      : a_(a),
        E_(a.logits.cols),
        K_(a.rule.choices),
        logits_(a.logits.as<T>()),
        out_(a.grad_logits.as<T>()),
        squares_(a.grad_lse_squares.data == nullptr ? W(0) : *a.grad_lse_squares.as<W>().data),
        zero_(a.grad_probs.data == nullptr ? E_ : 0),
        z_(E_),
        softmax_(E_),
        s_(E_),
        slope_(E_),
        d_(E_),
        c_(K_) {}

  void run(int64_t t) {
    if (a_.valid != nullptr && a_.valid[t] == 0) {
      std::fill_n(out_.row(t), E_, T{});
      return;
    }
    exponentials(t);
    const int64_t b = t / (logits_.rows / a_.sequences);
    const W* G = a_.grad_probs.data == nullptr ? zero_.data() : a_.grad_probs.as<W>().row(b);
    switch (a_.rule.score) {
      case Score::kSoftmax: softmax_row(t, G); break;
      case Score::kSigmoid: score_row<Score::kSigmoid>(t, G); break;
      case Score::kSqrtSoftplus: score_row<Score::kSqrtSoftplus>(t, G); break;
    }
    T* out = out_.row(t);
    for (int64_t e = 0; e < E_; ++e) put(out[e], d_[e]);
  }

 private:
  // z_, softmax_ and squared_: 2 grad_lse_squares lse
  void exponentials(int64_t t) {
    const T* row = logits_.row(t);
    W top = -std::numeric_limits<W>::infinity(), sum = 0;
#pragma omp simd reduction(max : top)
    for (int64_t e = 0; e < E_; ++e) {
      const W z = static_cast<W>(row[e]);
      z_[e] = z;
      top = z > top ? z : top;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < E_; ++e) {
      softmax_[e] = fast::exp(z_[e] - top);
      sum += softmax_[e];
    }
    const W scale = 1 / sum;
    for (int64_t e = 0; e < E_; ++e) softmax_[e] *= scale;
    squared_ = 2 * squares_ * (top + std::log(sum));
  }

  void softmax_row(int64_t t, const W* G) {
    const bool of_logits = a_.rule.weighting == Weighting::kChosen;
    const int32_t* ids = choice_gradients(t, of_logits ? z_ : softmax_);
    std::copy_n(G, E_, d_.begin());
    const bool whole = of_logits || add_choices(ids);
    W mean = whole ? W(0) : std::numeric_limits<W>::quiet_NaN();
#pragma omp simd reduction(+ : mean)
    for (int64_t e = 0; e < E_; ++e) mean += d_[e] * softmax_[e];
    for (int64_t e = 0; e < E_; ++e) d_[e] = softmax_[e] * (d_[e] - mean + squared_);
    if (of_logits) add_choices(ids);
  }

  // Adds c_ to the chosen experts' elements; whether every choice has an expert.
  bool add_choices(const int32_t* ids) {
    bool whole = true;
    for (int64_t j = 0; ids != nullptr && j < K_; ++j) {
      if (ids[j] < 0) {
        whole = false;
      } else {
        d_[ids[j]] += c_[j];
      }
    }
    return whole;
  }

  template <Score kScore>
  void score_row(int64_t t, const W* G) {
    W sum = kTiny, mean = 0;
#pragma omp simd reduction(+ : sum, mean)
    for (int64_t e = 0; e < E_; ++e) {
      const scores::Slope slope = scores::slope_of<kScore>(z_[e]);
      s_[e] = static_cast<W>(slope.s);
      slope_[e] = static_cast<W>(slope.ds);
      sum += s_[e];
      mean += G[e] * s_[e];
    }
    const W scale = 1 / sum;
    mean *= scale;
    for (int64_t e = 0; e < E_; ++e) {
      d_[e] = slope_[e] * ((G[e] - mean) * scale) + squared_ * softmax_[e];
    }
    const int32_t* ids = choice_gradients(t, s_);
    for (int64_t j = 0; ids != nullptr && j < K_; ++j) {
      if (ids[j] >= 0) d_[ids[j]] += slope_[ids[j]] * c_[j];
    }
  }

  static W at(const std::vector<W>& x, int32_t id) {
    return id < 0 ? std::numeric_limits<W>::quiet_NaN() : x[id];
  }

  // Fills c_; returns the row's ids, or null where the weights have no gradient.
  const int32_t* choice_gradients(int64_t t, const std::vector<W>& worth) {
    if (a_.grad_weights.data == nullptr) return nullptr;
    const W* grad = a_.grad_weights.as<W>().row(t);
    const int32_t* ids = a_.ids + t * K_;
    const route_detail::OverLoop<W> over{K_};
    const auto value = [&](int64_t j) { return at(worth, ids[j]); };
    const auto norm = route_detail::norm_of<W>(a_.rule, over, value);
    const auto p = [&](int64_t j) { return route_detail::weight_of(a_.rule, norm, value(j)); };
    const W dot = over.sum([&](int64_t j) { return a_.rule.scale * grad[j] * p(j); });
    for (int64_t j = 0; j < K_; ++j) {
      c_[j] = route_detail::value_grad(a_.rule, norm, p(j), a_.rule.scale * grad[j], dot);
    }
    return ids;
  }

  const RouteBackward& a_;
  const int64_t E_, K_;
  const Mat<const T> logits_;
  const Mat<T> out_;
  const W squares_;
  const std::vector<W> zero_;
  std::vector<W> z_, softmax_, s_, slope_, d_, c_;
  W squared_ = 0;
};

}  // namespace

void route_backward_cpu(const RouteBackward& a, const Pool& pool) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    pool(a.logits.rows, kRowsPerRange, [&](int64_t begin, int64_t end) {
      RowGradient<T> row(a);
      for (int64_t t = begin; t < end; ++t) row.run(t);
    });
  });
}

}  // namespace troupe
