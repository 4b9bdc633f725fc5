// The contract, and the reference: written to be read beside the formula, not to be fast.
#include "troupe/kernels/route/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "troupe/kernels/route/geometry.h"

namespace troupe {
namespace {

using Vector = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

void check_like(const MatRef& m, Dtype dtype, int64_t rows, int64_t cols, const char* what) {
  check_matrix(m, what, rows, cols, wide(dtype));
}
void check_if_given(const MatRef& m, Dtype dtype, int64_t rows, int64_t cols, const char* what) {
  if (m.data != nullptr) check_like(m, dtype, rows, cols, what);
}

double score(Score kind, double z) {
  if (kind == Score::kSigmoid) return 1 / (1 + std::exp(-z));
  return std::sqrt(std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z))));
}
double score_slope(Score kind, double z) {
  const double s = score(kind, z), sigmoid = score(Score::kSigmoid, z);
  if (kind == Score::kSigmoid) return s * (1 - s);
  return s == 0 ? 0 : sigmoid / (2 * s);
}

// All that the formulas name of one row.
struct Row {
  Row(const RouteRule& rule, Vector logits) : z(std::move(logits)), softmax(z.size()) {
    for (const double x : z) top = x > top ? x : top;
    double sum = 0;
    for (const double x : z) sum += std::exp(x - top);
    lse = top + std::log(sum);
    std::transform(z.begin(), z.end(), softmax.begin(),
                   [&](double x) { return std::exp(x - top) / sum; });
    s = r = softmax;
    if (rule.score == Score::kSoftmax) return;
    std::transform(z.begin(), z.end(), s.begin(), [&](double x) { return score(rule.score, x); });
    score_sum = std::accumulate(s.begin(), s.end(), 0.0) + 1e-20;
    std::transform(s.begin(), s.end(), r.begin(), [&](double x) { return x / score_sum; });
  }
  Vector z, softmax, s, r;
  double top = -kInf, lse = 0, score_sum = 1;
};

double rank_key(double x) {
  return std::isnan(x) ? -kInf : x;
}

// The ids of the `n` largest of x among `from`, largest first.
std::vector<int32_t> largest(const Vector& x, std::vector<int32_t> from, int64_t n) {
  std::sort(from.begin(), from.end());
  std::stable_sort(from.begin(), from.end(),
                   [&](int a, int b) { return rank_key(x[a]) > rank_key(x[b]); });
  from.resize(n);
  return from;
}

std::vector<int32_t> numbers(int64_t begin, int64_t end) {
  std::vector<int32_t> all(end - begin);
  std::iota(all.begin(), all.end(), static_cast<int32_t>(begin));
  return all;
}

// The selection in the type that it is compared in.
template <class W>
Vector selection(const Route& a, const Row& row, bool plain) {
  const bool softmax = a.rule.score == Score::kSoftmax;
  Vector x(row.z.size());
  for (size_t e = 0; e < x.size(); ++e) {
    if (!plain && a.beta != nullptr) {
      x[e] = static_cast<W>(row.z[e]) - static_cast<W>(a.beta[e]);
    } else {
      x[e] = static_cast<W>(softmax ? row.z[e] : row.s[e]);
      if (!plain && a.bias != nullptr) x[e] = static_cast<W>(x[e]) + static_cast<W>(a.bias[e]);
    }
  }
  return x;
}

template <class W>
std::vector<int32_t> open_experts(const Route& a, const Row& row, const Vector& x) {
  const RouteRule& rule = a.rule;
  const int64_t E = a.logits.cols, size = E / rule.groups;
  if (rule.groups == 1) return numbers(0, E);
  Vector value = x;
  if (rule.score == Score::kSoftmax && rule.weighting != Weighting::kChosen) {
    for (int64_t e = 0; e < E; ++e) value[e] = static_cast<W>(std::exp(row.z[e] - row.top));
  }
  Vector group_score(rule.groups);
  for (int64_t g = 0; g < rule.groups; ++g) {
    W sum = 0;
    for (const int32_t e : largest(value, numbers(g * size, (g + 1) * size), rule.group_best)) {
      sum += static_cast<W>(rank_key(value[e]));
    }
    group_score[g] = sum;
  }
  std::vector<int32_t> open;
  for (const int32_t g : largest(group_score, numbers(0, rule.groups), rule.keep_groups)) {
    for (const int32_t e : numbers(g * size, (g + 1) * size)) open.push_back(e);
  }
  return open;
}

struct Given {
  std::vector<int32_t> ids;
  bool sound = true;
};
Given given(const Route& a, int64_t t) {
  const int32_t* row = a.given_ids + t * a.rule.choices;
  Given out{{row, row + a.rule.choices}};
  for (int32_t& id : out.ids) {
    if (0 <= id && id < a.logits.cols) continue;
    id = -1;
    out.sound = false;
  }
  std::vector<int32_t> sorted = out.ids;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) out.sound = false;
  return out;
}

// p over the chosen, before scaling.
Vector weigh(const RouteRule& rule, const Row& row, const std::vector<int32_t>& ids) {
  Vector p(ids.size());
  const auto at = [&](const Vector& x) {
    for (size_t j = 0; j < ids.size(); ++j) p[j] = ids[j] < 0 ? NAN : x[ids[j]];
  };
  const auto divide = [&](double by) {
    for (double& v : p) v /= by;
  };
  at(rule.weighting == Weighting::kChosen ? row.z : row.s);
  if (rule.weighting == Weighting::kChosen) {
    const double top = *std::max_element(p.begin(), p.end());
    for (double& v : p) v = std::exp(v - top);
    divide(std::accumulate(p.begin(), p.end(), 0.0));
  } else if (rule.weighting == Weighting::kSum && p.size() > 1) {
    divide(std::accumulate(p.begin(), p.end(), 1e-20));
  } else if (rule.weighting == Weighting::kNorm) {
    double sum = 0;
    for (const double v : p) sum += std::pow(v, rule.norm);
    if (sum != 0) divide(std::pow(sum, 1 / static_cast<double>(rule.norm)));
  }
  if (std::isnan(row.lse)) std::fill(p.begin(), p.end(), NAN);
  return p;
}

template <class T>
class Reference {
  using W = Wide<T>;

 public:
  explicit Reference(const Route& a)
      : a_(a),
        logits_(a.logits.as<T>()),
        weights_(a.weights.as<W>()),
        probs_(a.sequences * a.logits.cols) {}

  void run() {
    const int64_t E = logits_.cols, B = a_.sequences;
    std::fill_n(a_.counts, E, 0);
    std::fill_n(a_.tokens, B, 0);
    if (a_.probs.data != nullptr) std::fill_n(a_.plain_counts, B * E, 0);
    for (int64_t t = 0; t < logits_.rows; ++t) route(t);
    for (int64_t b = 0; a_.probs.data != nullptr && b < B; ++b) {
      for (int64_t e = 0; e < E; ++e) a_.probs.as<W>()(b, e) = static_cast<W>(probs_[b * E + e]);
    }
    *a_.lse_squares.as<W>().data = static_cast<W>(lse_squares_);
    *a_.kept_scores.as<W>().data = static_cast<W>(kept_scores_);
  }

 private:
  void route(int64_t t) {
    const int64_t K = a_.rule.choices;
    if (a_.valid != nullptr && a_.valid[t] == 0) {
      std::fill_n(a_.ids + t * K, K, -1);
      std::fill_n(weights_.row(t), K, W(0));
      a_.lse.as<W>()(0, t) = 0;
      return;
    }
    Vector z(logits_.cols);
    for (int64_t e = 0; e < logits_.cols; ++e) z[e] = static_cast<W>(logits_(t, e));
    const Row row(a_.rule, std::move(z));
    const Given choice = choose(row, t);
    const Vector p = weigh(a_.rule, row, choice.ids);
    for (int64_t k = 0; k < K; ++k) {
      a_.ids[t * K + k] = choice.ids[k];
      weights_(t, k) = static_cast<W>(choice.sound ? a_.rule.scale * p[k] : NAN);
      if (choice.ids[k] < 0) continue;
      ++a_.counts[choice.ids[k]];
      kept_scores_ += row.s[choice.ids[k]];
    }
    add_sums(row, t);
  }

  Given choose(const Row& row, int64_t t) const {
    if (a_.given_ids != nullptr) return given(a_, t);
    const Vector x = selection<W>(a_, row, false);
    return {largest(x, open_experts<W>(a_, row, x), a_.rule.choices)};
  }

  void add_sums(const Row& row, int64_t t) {
    const int64_t b = t / (logits_.rows / a_.sequences), E = logits_.cols;
    ++a_.tokens[b];
    a_.lse.as<W>()(0, t) = static_cast<W>(row.lse);
    lse_squares_ += row.lse * row.lse;
    if (a_.probs.data == nullptr) return;
    for (int64_t e = 0; e < E; ++e) probs_[b * E + e] += row.r[e];
    for (const int32_t e : largest(selection<W>(a_, row, true), numbers(0, E), a_.rule.choices)) {
      ++a_.plain_counts[b * E + e];
    }
  }

  const Route& a_;
  Mat<const T> logits_;
  Mat<W> weights_;
  Vector probs_;
  double lse_squares_ = 0, kept_scores_ = 0;
};

// d/ds (or d/dz for kChosen) of sum_j g_j p_j at the chosen.
Vector weigh_backward(const RouteRule& rule, const Row& row, const std::vector<int32_t>& ids,
                      const Vector& g) {
  const Vector p = weigh(rule, row, ids);
  const double dot = std::inner_product(g.begin(), g.end(), p.begin(), 0.0);
  const double q = rule.norm;
  double sum = 0, power_sum = 0;
  for (const int32_t e : ids) {
    sum += e < 0 ? NAN : row.s[e];
    power_sum += e < 0 ? NAN : std::pow(row.s[e], q);
  }
  const double norm = std::pow(power_sum, 1 / q);
  Vector d(g.size());
  for (size_t j = 0; j < d.size(); ++j) {
    switch (rule.weighting) {
      case Weighting::kChosen: d[j] = p[j] * (g[j] - dot); break;
      case Weighting::kRaw: d[j] = g[j]; break;
      case Weighting::kSum: d[j] = g.size() == 1 ? g[j] : (g[j] - dot) / (sum + 1e-20); break;
      case Weighting::kNorm:
        d[j] = norm == 0 ? 0 : (g[j] - dot * std::pow(p[j], q - 1)) / norm;
        break;
    }
  }
  return d;
}

template <class T>
void backward_row(const RouteBackward& a, int64_t t, const Row& row, T* out) {
  using W = Wide<T>;
  const int64_t E = a.logits.cols, K = a.rule.choices;
  const int64_t b = t / (a.logits.rows / a.sequences);
  const bool softmax = a.rule.score == Score::kSoftmax;
  const bool of_logits = a.rule.weighting == Weighting::kChosen;
  // Gradients of r, of s and of z; each goes on to the next.
  Vector grad_r(E), grad_s(E), grad_z(E);
  for (int64_t e = 0; a.grad_probs.data != nullptr && e < E; ++e) {
    grad_r[e] = a.grad_probs.as<W>()(b, e);
  }
  const double mean = std::inner_product(row.r.begin(), row.r.end(), grad_r.begin(), 0.0);
  for (int64_t e = 0; e < E; ++e)
    grad_s[e] = softmax ? grad_r[e] : (grad_r[e] - mean) / row.score_sum;
  if (a.grad_weights.data != nullptr) {
    const std::vector<int32_t> ids(a.ids + t * K, a.ids + (t + 1) * K);
    Vector g(K);
    for (int64_t j = 0; j < K; ++j) g[j] = a.rule.scale * a.grad_weights.as<W>()(t, j);
    const Vector d = weigh_backward(a.rule, row, ids, g);
    for (int64_t j = 0; j < K; ++j) {
      if (ids[j] >= 0) (of_logits ? grad_z : grad_s)[ids[j]] += d[j];
    }
  }
  const double dot = std::inner_product(row.s.begin(), row.s.end(), grad_s.begin(), 0.0);
  for (int64_t e = 0; e < E; ++e) {
    grad_z[e] +=
        softmax ? row.s[e] * (grad_s[e] - dot) : score_slope(a.rule.score, row.z[e]) * grad_s[e];
    if (a.grad_lse_squares.data == nullptr) continue;
    grad_z[e] += *a.grad_lse_squares.as<W>().data * 2 * row.lse * row.softmax[e];
  }
  for (int64_t e = 0; e < E; ++e) out[e] = static_cast<T>(static_cast<W>(grad_z[e]));
}

}  // namespace

void validate(const RouteRule& r, int64_t E) {
  TROUPE_CHECK(E >= 1, "experts", E);
  TROUPE_CHECK(1 <= r.choices && r.choices <= E, "top_k", r.choices, "of", E, "experts");
  if (r.weighting == Weighting::kChosen) {
    TROUPE_CHECK(r.score == Score::kSoftmax, "softmax over the chosen logits with another score");
    TROUPE_CHECK(r.choices > 1 || E == 1,
                 "softmax over one chosen logit is 1 and trains no router: take the scores before "
                 "the choice (R5) or sigmoid scores (R6); top_k",
                 r.choices, "of", E);
  }
  TROUPE_CHECK(r.norm >= 1, "norm", r.norm);
  TROUPE_CHECK(1 <= r.groups && E % r.groups == 0, "groups", r.groups, "of", E, "experts");
  if (r.groups == 1) return;
  const int64_t size = E / r.groups;
  TROUPE_CHECK(1 <= r.keep_groups && r.keep_groups <= r.groups, "keep", r.keep_groups, "of",
               r.groups, "groups");
  TROUPE_CHECK(r.keep_groups * size >= r.choices, "keep_groups", r.keep_groups, "of", size,
               "experts each for top_k", r.choices);
  TROUPE_CHECK(1 <= r.group_best && r.group_best <= size, "group_best", r.group_best, "of", size,
               "experts in a group");
}

void validate(const Route& a) {
  const int64_t T = a.logits.rows, E = a.logits.cols, B = a.sequences;
  const Dtype type = a.logits.dtype;
  validate(a.rule, E);
  check_matrix(a.logits, "logits", T, E, type);
  TROUPE_CHECK(B >= 1 && T % B == 0, "tokens", T, "in", B, "sequences");
  TROUPE_CHECK(T * a.rule.choices < (int64_t{1} << 31), "tokens", T, "top_k", a.rule.choices);
  check_like(a.weights.read(), type, T, a.rule.choices, "weights");
  check_like(a.lse.read(), type, 1, T, "lse");
  check_like(a.lse_squares.read(), type, 1, 1, "lse_squares");
  check_like(a.kept_scores.read(), type, 1, 1, "kept_scores");
  check_if_given(a.probs.read(), type, B, E, "probs");
  TROUPE_CHECK(a.counts != nullptr && a.tokens != nullptr && (a.ids != nullptr || T == 0),
               "ids, counts and tokens");
  TROUPE_CHECK(a.probs.data == nullptr || a.plain_counts != nullptr, "plain_counts beside probs");
  TROUPE_CHECK(a.bias == nullptr || a.rule.score != Score::kSoftmax, "a bias of softmax scores");
  const bool beta = a.beta != nullptr, free = a.bias == nullptr && a.rule.groups == 1;
  TROUPE_CHECK(!beta || (free && a.rule.choices < E),
               "beta goes without bias and groups, for fewer choices than experts; groups",
               a.rule.groups, "top_k", a.rule.choices, "of", E);
  TROUPE_CHECK(a.given_ids == nullptr || (free && !beta),
               "given ids go without bias, beta and groups; groups", a.rule.groups);
}

void validate(const RouteBackward& a) {
  const int64_t T = a.logits.rows, E = a.logits.cols, B = a.sequences;
  const Dtype type = a.logits.dtype;
  validate(a.rule, E);
  check_matrix(a.logits, "logits", T, E, type);
  check_matrix(a.grad_logits.read(), "grad_logits", T, E, type);
  TROUPE_CHECK(B >= 1 && T % B == 0, "tokens", T, "in", B, "sequences");
  check_if_given(a.grad_weights, type, T, a.rule.choices, "grad_weights");
  check_if_given(a.grad_probs, type, B, E, "grad_probs");
  check_if_given(a.grad_lse_squares, type, 1, 1, "grad_lse_squares");
  TROUPE_CHECK(a.ids != nullptr || T == 0 || a.grad_weights.data == nullptr, "ids");
}

int64_t bytes_moved(const Route& a) {
  const int64_t T = a.logits.rows, E = a.logits.cols;
  return T * E * size_bytes(a.logits.dtype) + T * (a.rule.choices * 8 + 4) + E * 8;
}

int64_t bytes_moved(const RouteBackward& a) {
  const int64_t T = a.logits.rows, E = a.logits.cols;
  return 2 * T * E * size_bytes(a.logits.dtype) + T * a.rule.choices * 8;
}

int64_t workspace_bytes(const Route& a) {
  Route sizes = a;
  sizes.workspace = nullptr;
  return route_detail::partials(sizes).bytes;
}

void route_ref(const Route& a) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() { Reference<T>(a).run(); });
}

void route_backward_ref(const RouteBackward& a) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    const auto logits = a.logits.as<T>();
    const auto out = a.grad_logits.as<T>();
    for (int64_t t = 0; t < logits.rows; ++t) {
      if (a.valid != nullptr && a.valid[t] == 0) {
        std::fill_n(out.row(t), logits.cols, T{});
        continue;
      }
      Vector z(logits.cols);
      for (int64_t e = 0; e < logits.cols; ++e) z[e] = static_cast<Wide<T>>(logits(t, e));
      backward_row(a, t, Row(a.rule, std::move(z)), out.row(t));
    }
  });
}

}  // namespace troupe
