// The contract, and the reference: written to be read beside the formula, not to be fast.
#include "troupe/kernels/adamw/adamw.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "troupe/core/number/moment8.h"
#include "troupe/core/number/split_f32.h"

namespace troupe {
namespace {

template <class T>
void check_row(const Mat<T>& x, const char* what, int64_t n) {
  TROUPE_CHECK(x.rows == 1 && x.cols == n && x.ld >= n, what, "is", x.rows, "x", x.cols,
               "and must be 1 x", n);
  TROUPE_CHECK(x.data != nullptr || n == 0, what, "is missing");
}

void check_moments(const AdamW& a, int64_t n) {
  if (!in_codes(a)) {
    check_matrix(a.m.read(), "m", 1, n, a.m.dtype);
    check_matrix(a.v.read(), "v", 1, n, a.m.dtype);
    TROUPE_CHECK(a.m.dtype != Dtype::kF16, "moments in f16 would overflow");
    TROUPE_CHECK(a.v8.codes.rows == 0, "v8 is given, and m");
    return;
  }
  TROUPE_CHECK(a.m.rows == 0 && a.v.rows == 0, "m8 is given, and m or v too");
  check_row(a.m8.codes, "m8", n);
  check_row(a.v8.codes, "v8", n);
  check_row(a.m8.scales, "scales of m8", moment_blocks(n));
  check_row(a.v8.scales, "scales of v8", moment_blocks(n));
}

}  // namespace

void validate(const AdamW& a) {
  const int64_t n = a.grad.cols;
  const bool f64 = a.param.dtype == Dtype::kF64;
  check_matrix(a.grad, "grad", 1, n, a.grad.dtype);
  if (in_halves(a)) {
    TROUPE_CHECK(a.param.rows == 0 && !f64, "remainder is given, and param too");
    check_row(a.remainder, "remainder", n);
    check_matrix(a.copy.read(), "copy", 1, n, Dtype::kBF16);
  } else {
    check_matrix(a.param.read(), "param", 1, n, f64 ? Dtype::kF64 : Dtype::kF32);
  }
  check_moments(a, n);
  TROUPE_CHECK((a.grad.dtype == Dtype::kF64) == f64 && (a.m.dtype == Dtype::kF64) == f64,
               "param is", name(a.param.dtype), "grad", name(a.grad.dtype), "m", name(a.m.dtype));
  if (a.copy.data != nullptr) {
    check_matrix(a.copy.read(), "copy", 1, n, a.copy.dtype);
    TROUPE_CHECK(size_bytes(a.copy.dtype) == 2 && !f64, "a copy in", name(a.copy.dtype));
  }
  if (a.constants != nullptr) {
    TROUPE_CHECK(!f64, "constants are floats, and param is", name(a.param.dtype));
    return;
  }
  TROUPE_CHECK(a.step > 0, "step", a.step);
  TROUPE_CHECK(0 <= a.beta1 && a.beta1 < 1 && 0 <= a.beta2 && a.beta2 < 1, "betas", a.beta1,
               a.beta2);
  TROUPE_CHECK(a.eps >= 0 && std::isfinite(a.eps), "eps", a.eps);
  TROUPE_CHECK(std::isfinite(a.lr) && std::isfinite(a.weight_decay), "lr", a.lr, "weight_decay",
               a.weight_decay);
}

int64_t bytes_moved(const AdamW& a) {
  const int64_t copy = a.copy.data == nullptr ? 0 : size_bytes(a.copy.dtype);
  const int64_t param = in_halves(a) ? 2 * (2 + 2) : 2 * size_bytes(a.param.dtype) + copy;
  const int64_t moment = in_codes(a) ? 1 : size_bytes(a.m.dtype);
  const int64_t scales = in_codes(a) ? 4 * 4 * moment_blocks(a.grad.cols) : 0;
  return a.grad.cols * (param + 4 * moment + size_bytes(a.grad.dtype)) + scales;
}

AdamWStep<double> adamw_step(const AdamW& a) {
  const auto step = static_cast<double>(a.step);
  return {.lr = a.lr,
          .beta1 = a.beta1,
          .rest1 = 1 - a.beta1,
          .beta2 = a.beta2,
          .rest2 = 1 - a.beta2,
          .unbias1 = 1 / (1 - std::pow(a.beta1, step)),
          .unbias2 = 1 / (1 - std::pow(a.beta2, step)),
          .eps = a.eps,
          .weight_decay = a.weight_decay};
}

namespace {

uint32_t largest_bits(const float* x, int64_t count) {
  uint32_t out = 0;
  for (int64_t i = 0; i < count; ++i) {
    out = std::max(out, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  return out;
}

void code_block(const AdamW& a, int64_t from, int64_t count, const float* m, const float* v) {
  const int64_t block = from / kMomentBlock;
  const float m_scale = moment_scale(largest_bits(m, count));
  const float v_scale = moment_scale(largest_bits(v, count));
  a.m8.scales(0, block) = m_scale;
  a.v8.scales(0, block) = v_scale;
  for (int64_t i = 0; i < count; ++i) {
    const MomentDither dither = moment_dither(m[i], v[i]);
    a.m8.codes(0, from + i) = first_moment_code(m[i], moment_inverse(m_scale), dither.first);
    a.v8.codes(0, from + i) = second_moment_code(v[i], moment_inverse(v_scale), dither.second);
  }
}

}  // namespace

void adamw_ref(const AdamW& a) {
  validate(a);
  TROUPE_CHECK(a.constants == nullptr, "the reference reads step, lr and the others");
  const double scale = a.grad_scale == nullptr ? 1 : *a.grad_scale;
  if (!std::isfinite(scale)) return;
  const auto element = [](const MatRef& x, int64_t i) {
    return dispatch_float64(
        x.dtype, [&]<class T>() -> double { return static_cast<Wide<T>>(x.as<T>()(0, i)); });
  };
  const auto store = [](const MutRef& x, int64_t i, double value) {
    dispatch_float64(
        x.dtype, [&]<class T>() { x.as<T>()(0, i) = static_cast<T>(static_cast<Wide<T>>(value)); });
  };
  const auto param = [&](int64_t i) -> double {
    if (!in_halves(a)) return element(a.param.read(), i);
    return join_f32(a.copy.as<BF16>()(0, i).bits, a.remainder(0, i));
  };
  const auto store_param = [&](int64_t i, double value) {
    if (in_halves(a)) {
      const SplitF32 s = split_f32(static_cast<float>(value));
      a.copy.as<BF16>()(0, i).bits = s.value;
      a.remainder(0, i) = s.low;
      return;
    }
    store(a.param, i, value);
    if (a.copy.data != nullptr) store(a.copy, i, element(a.param.read(), i));
  };
  const int64_t n = a.grad.cols;
  std::vector<float> m8, v8;  // new moments, to be coded
  const auto step = static_cast<double>(a.step);
  for (int64_t i = 0; i < n; ++i) {
    const double g = element(a.grad, i) * scale, p = param(i);
    const int64_t block = i / kMomentBlock;
    const double old_m = in_codes(a) ? first_moment(a.m8.codes(0, i), a.m8.scales(0, block))
                                     : element(a.m.read(), i);
    const double old_v = in_codes(a) ? second_moment(a.v8.codes(0, i), a.v8.scales(0, block))
                                     : element(a.v.read(), i);
    const double m = a.beta1 * old_m + (1 - a.beta1) * g;
    const double v = a.beta2 * old_v + (1 - a.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(a.beta1, step));
    const double v_hat = v / (1 - std::pow(a.beta2, step));
    const double next = p - a.lr * (m_hat / (std::sqrt(v_hat) + a.eps) + a.weight_decay * p);
    store_param(i, next);
    if (in_codes(a)) {
      m8.push_back(static_cast<float>(m)), v8.push_back(static_cast<float>(v));
      continue;
    }
    store(a.m, i, m);
    store(a.v, i, v);
  }
  for (int64_t from = 0; from < n && in_codes(a); from += kMomentBlock) {
    code_block(a, from, std::min(kMomentBlock, n - from), m8.data() + from, v8.data() + from);
  }
}

}  // namespace troupe
