#include "troupe/kernels/expert_choice/expert_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "troupe/core/number/round.h"
#include "troupe/kernels/expert_choice/workspace.h"

namespace troupe {
namespace {

using Vector = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

bool is_valid(const uint8_t* valid, int64_t t) {
  return valid == nullptr || valid[t] != 0;
}

struct Row {
  Vector s, ds, softmax;
  double lse = 0;
};

template <class T>
Row row_of(const Mat<const T>& logits, Score score, int64_t t) {
  const int64_t E = logits.cols;
  Row row{Vector(E), Vector(E), Vector(E)};
  Vector z(E);
  for (int64_t e = 0; e < E; ++e) z[e] = static_cast<Wide<T>>(logits(t, e));
  double top = -kInf, sum = 0;
  for (const double x : z) top = x > top ? x : top;
  for (const double x : z) sum += std::exp(x - top);
  row.lse = top + std::log(sum);
  for (int64_t e = 0; e < E; ++e) {
    row.softmax[e] = std::exp(z[e] - top) / sum;
    const double sigmoid = 1 / (1 + std::exp(-z[e]));
    const double root = std::sqrt(std::max(z[e], 0.0) + std::log1p(std::exp(-std::abs(z[e]))));
    switch (score) {
      case Score::kSoftmax: row.s[e] = row.softmax[e]; break;
      case Score::kSigmoid:
        row.s[e] = sigmoid;
        row.ds[e] = sigmoid * (1 - sigmoid);
        break;
      case Score::kSqrtSoftplus:
        row.s[e] = root;
        row.ds[e] = root == 0 ? 0 : sigmoid / (2 * root);
        break;
    }
  }
  return row;
}

// Marks the tokens that expert e takes, by the scores in column s.
void take(const ExpertChoice& a, int32_t e, const Vector& s) {
  const int64_t T = a.logits.rows, E = a.logits.cols;
  std::vector<int64_t> tokens;
  for (int64_t t = 0; t < T; ++t) {
    if (is_valid(a.valid, t)) tokens.push_back(t);
  }
  const auto key = [&](int64_t t) { return std::isnan(s[t]) ? -kInf : s[t]; };
  std::stable_sort(tokens.begin(), tokens.end(),
                   [&](int64_t x, int64_t y) { return key(x) > key(y); });
  tokens.resize(expert_choice_capacity(a.rule.rho, static_cast<int64_t>(tokens.size()), E));
  for (const int64_t t : tokens) a.ids[t * E + e] = e;
}

double divisor(const ExpertChoiceRule& rule, const Row& row, const int32_t* ids) {
  if (!rule.normalize) return 1;
  double sum = 1e-20;
  for (size_t e = 0; e < row.s.size(); ++e) sum += ids[e] < 0 ? 0 : row.s[e];
  return sum;
}

template <class T>
void choose(const ExpertChoice& a, const std::vector<Row>& rows) {
  const int64_t Tokens = a.logits.rows, E = a.logits.cols;
  std::fill_n(a.ids, Tokens * E, -1);
  for (int32_t e = 0; e < E; ++e) {
    Vector column(Tokens);
    for (int64_t t = 0; t < Tokens; ++t) column[t] = static_cast<Wide<T>>(rows[t].s[e]);
    if (a.given_ids == nullptr) take(a, e, column);
    for (int64_t t = 0; a.given_ids != nullptr && t < Tokens; ++t) {
      if (is_valid(a.valid, t) && a.given_ids[t * E + e] == e) a.ids[t * E + e] = e;
    }
    a.counts[e] = 0;
    for (int64_t t = 0; t < Tokens; ++t) a.counts[e] += a.ids[t * E + e] == e;
  }
}

}  // namespace

int64_t expert_choice_capacity(double rho, int64_t tokens, int64_t experts) {
  const double share = rho * static_cast<double>(tokens) / static_cast<double>(experts);
  return std::min(tokens, std::max<int64_t>(0, static_cast<int64_t>(std::ceil(share - 1e-6))));
}

void validate(const ExpertChoice& a) {
  const int64_t T = a.logits.rows, E = a.logits.cols;
  const Dtype type = wide(a.logits.dtype);
  TROUPE_CHECK(E >= 1 && T < (int64_t{1} << 31), "tokens", T, "experts", E);
  TROUPE_CHECK(0 <= a.rule.rho && a.rule.rho <= static_cast<double>(E), "rho", a.rule.rho, "of", E);
  check_matrix(a.logits, "logits", T, E, a.logits.dtype);
  check_matrix(a.weights.read(), "weights", T, E, type);
  check_matrix(a.lse_squares.read(), "lse_squares", 1, 1, type);
  TROUPE_CHECK(a.counts != nullptr && (a.ids != nullptr || T == 0), "ids and counts");
}

void validate(const ExpertChoiceBackward& a) {
  const int64_t T = a.logits.rows, E = a.logits.cols;
  const Dtype type = wide(a.logits.dtype);
  check_matrix(a.logits, "logits", T, E, a.logits.dtype);
  check_matrix(a.grad_logits.read(), "grad_logits", T, E, a.logits.dtype);
  if (a.grad_weights.data != nullptr) check_matrix(a.grad_weights, "grad_weights", T, E, type);
  if (a.grad_lse_squares.data != nullptr) {
    check_matrix(a.grad_lse_squares, "grad_lse_squares", 1, 1, type);
  }
  TROUPE_CHECK(a.ids != nullptr || T == 0, "ids");
}

int64_t bytes_moved(const ExpertChoice& a) {
  return a.logits.rows * a.logits.cols * (size_bytes(a.logits.dtype) + 8);
}

int64_t workspace_bytes(const ExpertChoice& a) {
  ExpertChoice sizes = a;
  sizes.workspace = nullptr;
  return expert_choice_detail::workspace(sizes).bytes;
}

void expert_choice_ref(const ExpertChoice& a) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    const auto logits = a.logits.as<T>();
    const auto weights = a.weights.as<Wide<T>>();
    std::vector<Row> rows;
    for (int64_t t = 0; t < logits.rows; ++t) rows.push_back(row_of(logits, a.rule.score, t));
    choose<T>(a, rows);
    double squares = 0;
    for (int64_t t = 0; t < logits.rows; ++t) {
      const Row& row = rows[t];
      const int32_t* ids = a.ids + t * logits.cols;
      if (is_valid(a.valid, t)) squares += row.lse * row.lse;
      const double by = divisor(a.rule, row, ids) / a.rule.scale;
      for (int64_t e = 0; e < logits.cols; ++e) {
        const double w = std::isnan(row.lse) ? NAN : row.s[e] / by;
        weights(t, e) = static_cast<Wide<T>>(ids[e] < 0 ? 0 : w);
      }
    }
    *a.lse_squares.as<Wide<T>>().data = static_cast<Wide<T>>(squares);
  });
}

void expert_choice_backward_ref(const ExpertChoiceBackward& a) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    using W = Wide<T>;
    const auto logits = a.logits.as<T>();
    const auto out = a.grad_logits.as<T>();
    const int64_t E = logits.cols;
    const double squares =
        a.grad_lse_squares.data == nullptr ? 0 : *a.grad_lse_squares.as<W>().data;
    for (int64_t t = 0; t < logits.rows; ++t) {
      const Row row = row_of(logits, a.rule.score, t);
      const int32_t* ids = a.ids + t * E;
      const double by = divisor(a.rule, row, ids);
      Vector grad_s(E);
      double dot = 0;  // sum of g p
      for (int64_t e = 0; e < E; ++e) {
        if (ids[e] < 0 || a.grad_weights.data == nullptr) continue;
        grad_s[e] = a.rule.scale * a.grad_weights.as<W>()(t, e);
        dot += grad_s[e] * row.s[e] / by;
      }
      for (int64_t e = 0; e < E; ++e) {
        if (ids[e] >= 0) grad_s[e] = (grad_s[e] - (a.rule.normalize ? dot : 0)) / by;
      }
      const double mean = std::inner_product(row.s.begin(), row.s.end(), grad_s.begin(), 0.0);
      for (int64_t e = 0; e < E; ++e) {
        const double own =
            a.rule.score == Score::kSoftmax ? row.s[e] * (grad_s[e] - mean) : row.ds[e] * grad_s[e];
        const double d = own + 2 * squares * row.lse * row.softmax[e];
        out(t, e) = static_cast<T>(static_cast<W>(is_valid(a.valid, t) ? d : 0));
      }
    }
  });
}

}  // namespace troupe
