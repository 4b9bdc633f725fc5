// The CPU path: one exponential an element and iteration. With the rows' sums at hand, column e
// gains n P[t, e] = exp(z + v - top) / sum, and the new v follows from the change alone:
// v -= ln(E / n sum_t n P[t, e]).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "troupe/core/number/fast_math.h"
#include "troupe/core/number/top_k.h"
#include "troupe/kernels/sinkhorn/geometry.h"

namespace troupe {
namespace {

constexpr int64_t kColumnsPerRange = 16;

template <class T>
class Search {
  using W = Wide<T>;
  static constexpr W kLowest = -std::numeric_limits<W>::infinity();

 public:
  Search(const Sinkhorn& a, const Pool& pool)
      : a_(a),
        pool_(pool),
        T_(a.logits.rows),
        E_(a.logits.cols),
        rows_(sinkhorn_detail::rows_per_chunk(T_)),
        chunks_(ceil_div(T_, rows_)),
        n_(a.valid == nullptr ? T_ : T_ - std::count(a.valid, a.valid + T_, uint8_t{0})),
        z_(T_ * E_),
        parts_(chunks_ * E_),
        change_(E_),
        v_(E_),
        u_(T_) {}

  void run() {
    each_chunk([&](int64_t t) { load(t); });
    *a_.iterations = 0;
    for (bool done = n_ == 0; !done; done = done || *a_.iterations == a_.max_iterations) {
      pool_(chunks_, 1, [&](int64_t begin, int64_t end) {
        std::vector<W> p(E_);
        for (int64_t c = begin; c < end; ++c) sum_chunk(c, p);
      });
      pool_(E_, kColumnsPerRange, [&](int64_t begin, int64_t end) { update(begin, end); });
      const double change = std::accumulate(change_.begin(), change_.end(), 0.0);
      done = change / static_cast<double>(E_) <= a_.tolerance;
      ++*a_.iterations;
    }
    pool_(chunks_, 1, [&](int64_t begin, int64_t end) {
      TopK<W> experts(E_);
      for (int64_t t = begin * rows_; t < std::min(end * rows_, T_); ++t) choose(t, experts);
    });
    const double log_n = std::log(static_cast<double>(std::max<int64_t>(n_, 1)));
    W* u = a_.u.template as<W>().data;
    for (int64_t t = 0; t < T_; ++t) u[t] = takes_part(t) ? static_cast<W>(u_[t] - log_n) : W(0);
    std::transform(v_.begin(), v_.end(), a_.v.template as<W>().data,
                   [](double v) { return static_cast<W>(v); });
  }

 private:
  bool valid(int64_t t) const { return a_.valid == nullptr || a_.valid[t] != 0; }
  bool takes_part(int64_t t) const { return !std::isnan(u_[t]); }

  void each_chunk(const auto& f) {
    pool_(chunks_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin * rows_; t < std::min(end * rows_, T_); ++t) f(t);
    });
  }

  // Marks rows that take no part.
  void load(int64_t t) {
    const T* row = a_.logits.as<T>().row(t);
    W* z = z_.data() + t * E_;
    W top = kLowest, poison = 0;
#pragma omp simd reduction(max : top) reduction(+ : poison)
    for (int64_t e = 0; e < E_; ++e) {
      z[e] = static_cast<W>(row[e]);
      top = z[e] > top ? z[e] : top;
      poison += z[e] == z[e] ? W(0) : z[e];
    }
    const bool sound = valid(t) && std::isfinite(top + poison);
    u_[t] = sound ? 0 : std::numeric_limits<double>::quiet_NaN();
  }

  void sum_chunk(int64_t chunk, std::vector<W>& p) {
    W* sums = parts_.data() + chunk * E_;
    std::fill_n(sums, E_, W(0));
    for (int64_t t = chunk * rows_; t < std::min((chunk + 1) * rows_, T_); ++t) {
      if (takes_part(t)) add_row(t, p, sums);
    }
  }

  void add_row(int64_t t, std::vector<W>& p, W* sums) {
    const W* z = z_.data() + t * E_;
    const double* v = v_.data();
    double top = kLowest;
    W sum = 0;
#pragma omp simd reduction(max : top)
    for (int64_t e = 0; e < E_; ++e) {
      const double x = z[e] + v[e];
      top = x > top ? x : top;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t e = 0; e < E_; ++e) {
      p[e] = fast::exp(static_cast<W>(z[e] + v[e] - top));
      sum += p[e];
    }
    const W scale = 1 / sum;
    for (int64_t e = 0; e < E_; ++e) sums[e] += p[e] * scale;
    u_[t] = -top - std::log(sum);  // Without -ln n, so that exp(z + u + v) is n P.
  }

  void update(int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      double sum = 0;
      for (int64_t c = 0; c < chunks_; ++c) sum += parts_[c * E_ + e];
      double next = v_[e];
      if (sum >= sinkhorn_detail::kSafeSum) {
        next -= std::log(sum * static_cast<double>(E_) / static_cast<double>(n_));
      } else {
        const double column = column_lse(e);
        if (column > kLowest) next = std::log(static_cast<double>(n_) / E_) - column;
      }
      change_[e] = std::abs(next - v_[e]);
      v_[e] = next;
    }
  }

  // Log-sum-exp of z + u + ln n over the tokens, relative to its maximum.
  double column_lse(int64_t e) const {
    const auto x = [&](int64_t t) { return z_[t * E_ + e] + u_[t]; };
    double top = kLowest, sum = 0;
    for (int64_t t = 0; t < T_; ++t) {
      if (takes_part(t)) top = std::max(top, x(t));
    }
    if (top == kLowest) return top;
    for (int64_t t = 0; t < T_; ++t) {
      if (takes_part(t)) sum += std::exp(x(t) - top);
    }
    return top + std::log(sum);
  }

  void choose(int64_t t, TopK<W>& experts) const {
    int32_t* ids = a_.ids + t * a_.choices;
    if (!valid(t)) {
      std::fill_n(ids, a_.choices, -1);
      return;
    }
    const W* z = z_.data() + t * E_;
    double top = kLowest;
    for (int64_t e = 0; e < E_; ++e) top = std::max(top, z[e] + v_[e]);
    for (int64_t e = 0; e < E_; ++e) {
      experts.keys()[e] = TopK<W>::key_of(static_cast<W>(z[e] + v_[e] - top));
    }
    experts.start(E_);
    for (int64_t k = 0; k < a_.choices; ++k) ids[k] = experts.take().index;
  }

  const Sinkhorn& a_;
  const Pool& pool_;
  const int64_t T_, E_, rows_, chunks_, n_;
  std::vector<W> z_;      // [T, E]
  std::vector<W> parts_;  // [chunks, E]
  std::vector<double> change_, v_;
  std::vector<double> u_;  // plus ln n; NaN: the row takes no part
};

}  // namespace

void sinkhorn_cpu(const Sinkhorn& a, const Pool& pool) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() { Search<T>(a, pool).run(); });
}

}  // namespace troupe
