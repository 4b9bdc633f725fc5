#include "troupe/nn/parts/rope.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "troupe/core/check.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

double stretched(const RopeConfig& c, double scale) {  // g
  return c.factor > 1 ? 0.1 * scale * std::log(c.factor) + 1 : 1;
}

double llama3(const RopeConfig& c, double f) {
  const double ratio = static_cast<double>(c.original_positions) * f / kTurn;  // L / w
  if (ratio < c.low_freq) return f / c.factor;
  if (ratio > c.high_freq) return f;
  const double s = (ratio - c.low_freq) / (c.high_freq - c.low_freq);
  return f * ((1 - s) / c.factor + s);
}

// How far dimension j is on the ramp from the kept frequencies to the divided ones.
class Ramp {
 public:
  Ramp(const RopeConfig& c, int64_t n) {
    const double dims = static_cast<double>(n), L = static_cast<double>(c.original_positions);
    const auto at = [&](double r) {
      return dims * std::log(L / (r * kTurn)) / (2 * std::log(c.theta));
    };
    const double lo = at(c.beta_fast), hi = at(c.beta_slow);
    lo_ = std::max(c.truncate ? std::floor(lo) : lo, 0.0);
    hi_ = std::min(c.truncate ? std::ceil(hi) : hi, dims - 1);
    if (lo_ == hi_) hi_ += 0.001;  // a step; as the published code has it
  }
  double operator()(int64_t j) const {
    return std::clamp((static_cast<double>(j) - lo_) / (hi_ - lo_), 0.0, 1.0);
  }

 private:
  double lo_, hi_;
};

template <class T>
void fill(const RotaryTables& tables, const std::vector<double>& frequencies, double amplitude) {
  const int64_t rows = tables.cos.size(0), n = tables.cos.size(1);
  T* const cos = tables.cos.mutable_data_ptr<T>();
  T* const sin = tables.sin.mutable_data_ptr<T>();
  for (int64_t p = 0; p < rows; ++p) {
    for (int64_t j = 0; j < n; ++j) {
      const double angle = static_cast<double>(p) * frequencies[j];
      cos[p * n + j] = static_cast<T>(amplitude * std::cos(angle));
      sin[p * n + j] = static_cast<T>(amplitude * std::sin(angle));
    }
  }
}

}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& c, int64_t n) {
  TROUPE_CHECK(n >= 2 && n % 2 == 0, "dimensions that turn are pairs; there are", n);
  const Ramp ramp(c, n);
  std::vector<double> out(n / 2);
  for (int64_t j = 0; j < n / 2; ++j) {
    const double f = std::pow(c.theta, -2.0 * static_cast<double>(j) / static_cast<double>(n));
    switch (c.scaling) {
      case RopeScaling::kNone: out[j] = f; break;
      case RopeScaling::kLinear: out[j] = f / c.factor; break;
      case RopeScaling::kLlama3: out[j] = llama3(c, f); break;
      case RopeScaling::kYarn: out[j] = f * (1 - ramp(j)) + f / c.factor * ramp(j); break;
    }
  }
  return out;
}

double rope_amplitude(const RopeConfig& c) {
  if (c.scaling != RopeScaling::kYarn) return 1;
  if (c.attention_factor) return *c.attention_factor;
  if (c.mscale && c.mscale_all_dim) {
    return stretched(c, *c.mscale) / stretched(c, *c.mscale_all_dim);
  }
  return stretched(c, 1);
}

double rope_softmax_factor(const RopeConfig& c) {
  if (c.scaling != RopeScaling::kYarn || !c.mscale_all_dim) return 1;
  const double g = stretched(c, *c.mscale_all_dim);
  return g * g;
}

const RotaryTables& Rope::tables(int64_t positions, const at::Tensor& x) {
  const auto type = wide_type(x);
  const at::Tensor& cos = tables_.cos;
  if (cos.defined() && cos.size(0) >= positions && cos.device() == x.device() &&
      cos.scalar_type() == type) {
    return tables_;
  }
  const int64_t rows = std::max(positions, cos.defined() ? 2 * cos.size(0) : int64_t{0});
  const RotaryTables host = {at::empty({rows, n_ / 2}, type), at::empty({rows, n_ / 2}, type)};
  const std::vector<double> f = rope_frequencies(config_, n_);
  if (type == at::kDouble) {
    fill<double>(host, f, rope_amplitude(config_));
  } else {
    fill<float>(host, f, rope_amplitude(config_));
  }
  if (cos.defined() && cos.device() == x.device()) earlier_.push_back(tables_);
  tables_ = {host.cos.to(x.device()), host.sin.to(x.device())};
  return tables_;
}

}  // namespace troupe
