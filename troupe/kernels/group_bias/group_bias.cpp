// The contract, and the reference: written to be read beside the formula, not to be fast.
#include "troupe/kernels/group_bias/group_bias.h"

#include <vector>

namespace troupe {
namespace {

// f(e, r) for every row of every expert, in order.
template <class F>
void for_rows(const int32_t* expert_offset, int64_t num_experts, F&& f) {
  for (int64_t e = 0; e < num_experts; ++e) {
    for (int64_t r = expert_offset[e]; r < expert_offset[e + 1]; ++r) f(e, r);
  }
}

template <class W>
double score_of(const MatRef& score, int64_t r) {
  return score.data == nullptr ? 1.0 : double{score.as<W>()(r, 0)};
}

}  // namespace

void validate(const GroupBias& a) {
  check_matrix(a.x, "x", a.x.rows, a.x.cols, a.x.dtype);
  check_matrix(a.y.read(), "y", a.x.rows, a.x.cols, a.x.dtype);
  check_matrix(a.bias, "bias", a.bias.rows, a.x.cols, a.x.dtype);
  if (a.score.data != nullptr) check_matrix(a.score, "score", a.x.rows, 1, wide(a.x.dtype));
  TROUPE_CHECK(a.bias.rows > 0, "experts", a.bias.rows);
  TROUPE_CHECK(a.expert_offset != nullptr);
}

void validate(const GroupBiasBackward& a) {
  const int64_t rows = a.grad_y.rows, cols = a.grad_y.cols;
  const Dtype dtype = a.grad_y.dtype;
  check_matrix(a.grad_y, "grad_y", rows, cols, dtype);
  check_matrix(a.grad_bias.read(), "grad_bias", a.grad_bias.rows, cols, wide(dtype));
  if (a.score.data != nullptr) check_matrix(a.score, "score", rows, 1, wide(dtype));
  if (a.grad_score.data != nullptr) {
    check_matrix(a.grad_score.read(), "grad_score", rows, 1, wide(dtype));
    check_matrix(a.bias, "bias", a.grad_bias.rows, cols, dtype);
  }
  TROUPE_CHECK(a.grad_bias.rows > 0, "experts", a.grad_bias.rows);
  TROUPE_CHECK(a.expert_offset != nullptr);
}

int64_t bytes_moved(const GroupBias& a) {
  return (2 * a.x.rows + a.bias.rows) * a.x.cols * size_bytes(a.x.dtype);
}

int64_t bytes_moved(const GroupBiasBackward& a) {
  const int64_t passes = a.grad_score.data == nullptr ? 1 : 2;
  return passes * a.grad_y.rows * a.grad_y.cols * size_bytes(a.grad_y.dtype) +
         a.grad_bias.rows * a.grad_bias.cols * size_bytes(a.grad_bias.dtype);
}

void group_bias_ref(const GroupBias& a) {
  validate(a);
  dispatch_float64(a.x.dtype, [&]<class T>() {
    using W = Wide<T>;
    const auto x = a.x.as<T>(), bias = a.bias.as<T>();
    const auto y = a.y.as<T>();
    for_rows(a.expert_offset, bias.rows, [&](int64_t e, int64_t r) {
      for (int64_t d = 0; d < x.cols; ++d) {
        const double b = static_cast<W>(bias(e, d)), value = static_cast<W>(x(r, d));
        y(r, d) = static_cast<T>(static_cast<W>(value + score_of<W>(a.score, r) * b));
      }
    });
  });
}

void group_bias_backward_ref(const GroupBiasBackward& a) {
  validate(a);
  dispatch_float64(a.grad_y.dtype, [&]<class T>() {
    using W = Wide<T>;
    const auto grad = a.grad_y.as<T>();
    const auto grad_bias = a.grad_bias.as<W>();
    std::vector<double> sums(grad_bias.rows * grad.cols);
    for_rows(a.expert_offset, grad_bias.rows, [&](int64_t e, int64_t r) {
      double dot = 0;
      for (int64_t d = 0; d < grad.cols; ++d) {
        const double g = static_cast<W>(grad(r, d));
        sums[e * grad.cols + d] += score_of<W>(a.score, r) * g;
        if (a.bias.data != nullptr) dot += static_cast<W>(a.bias.as<T>()(e, d)) * g;
      }
      if (a.grad_score.data == nullptr) return;
      W& out = a.grad_score.as<W>()(r, 0);
      out = static_cast<W>(dot + (a.add_to_grad_score ? out : 0));
    });
    for (int64_t e = 0; e < grad_bias.rows; ++e) {
      for (int64_t d = 0; d < grad.cols; ++d) {
        grad_bias(e, d) = static_cast<W>(sums[e * grad.cols + d]);
      }
    }
  });
}

}  // namespace troupe
