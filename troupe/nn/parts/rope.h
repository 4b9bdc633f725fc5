// Rotary frequencies and tables, for all scalings of the context.
//
// n dimensions turn; f_j = theta^(-2j / n), j < n / 2; L = original_positions; c = factor.
//   none      f
//   linear    f / c
//   llama3    wave length w = 2 pi / f;  w > L / low: f / c;  w < L / high: f;
//             else s = (L / w - low) / (high - low), f ((1 - s) / c + s)
//   yarn      d(r) = n ln(L / (2 pi r)) / (2 ln theta);  lo = max(d(beta_fast), 0),
//             hi = min(d(beta_slow), n - 1), lo down and hi up to whole numbers if `truncate`;
//             ramp = clamp((j - lo) / (hi - lo), 0, 1);  f (1 - ramp) + f / c ramp;
//             cos and sin times m, m = attention_factor, or g(mscale) / g(mscale_all_dim) where
//             both are given, or g(1);  g(s) = 0.1 s ln c + 1 for c > 1, else 1
// cos[p, j] = m cos(p f_j), computed in double.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "troupe/core/text/text.h"
#include "troupe/ops/rotary.h"

namespace troupe {

enum class RopeScaling { kNone, kLinear, kLlama3, kYarn };
constexpr auto names_of(RopeScaling) {
  return std::array{Named{"none", RopeScaling::kNone}, Named{"linear", RopeScaling::kLinear},
                    Named{"llama3", RopeScaling::kLlama3}, Named{"yarn", RopeScaling::kYarn}};
}

struct RopeConfig {
  double theta = 10000;
  double fraction = 1;       // of a head's dimensions that turn, the first ones
  bool interleaved = false;  // neighbors (2j, 2j + 1) are pairs, instead of halves
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1;
  int64_t original_positions = 4096;     // L: before the context was stretched
  double low_freq = 1, high_freq = 4;    // llama3
  double beta_fast = 32, beta_slow = 1;  // yarn
  bool truncate = true;
  std::optional<double> attention_factor, mscale, mscale_all_dim;

  static void visit(auto& c, auto&& f) {
    f("theta", c.theta, "Base of the rotary frequencies (above 1).");
    f("fraction", c.fraction,
      "Fraction of head dimensions with rotary embedding (above 0, at most 1).");
    f("interleaved", c.interleaved,
      "Rotates neighboring dimensions as pairs, instead of the two halves.");
    f("scaling", c.scaling, "Frequency scaling for longer contexts.");
    f("factor", c.factor, "Context extension factor (1 or more).");
    f("original_positions", c.original_positions, "Context length before extension, in tokens.");
    f("low_freq", c.low_freq,
      "llama3: low frequency factor; lower frequencies are divided by factor.");
    f("high_freq", c.high_freq, "llama3: high frequency factor; higher frequencies are unchanged.");
    f("beta_fast", c.beta_fast,
      "yarn: rotations per context above which a frequency is unchanged.");
    f("beta_slow", c.beta_slow,
      "yarn: rotations per context below which a frequency is divided by factor.");
    f("truncate", c.truncate, "yarn: rounds the correction range to whole dimensions.");
    f("attention_factor", c.attention_factor,
      "yarn: scale of cosine and sine; null: derived from factor.");
    f("mscale", c.mscale, "yarn (DeepSeek): attention scale coefficient in the numerator.");
    f("mscale_all_dim", c.mscale_all_dim,
      "yarn (DeepSeek): coefficient in the denominator and in the softmax scale.");
  }
};

std::vector<double> rope_frequencies(const RopeConfig& config, int64_t n);  // n / 2 of them
double rope_amplitude(const RopeConfig& config);                            // m
// What DeepSeek multiplies the softmax's scale by: g(mscale_all_dim)^2; 1 where that is not given.
double rope_softmax_factor(const RopeConfig& config);

// The tables of n turned dimensions, made once and again when a longer sequence comes.
class Rope {
 public:
  Rope(const RopeConfig& config, int64_t n) : config_(config), n_(n) {}

  // At least `positions` rows, where and as x needs them (f32; f64 beside f64). The memory of
  // earlier ones stays, because a CUDA graph may read it; together they are no larger.
  const RotaryTables& tables(int64_t positions, const at::Tensor& x);
  RotaryOptions options(int64_t first = 0) const { return {config_.interleaved, first}; }

 private:
  RopeConfig config_;
  int64_t n_;
  RotaryTables tables_;
  std::vector<RotaryTables> earlier_;
};

}  // namespace troupe
