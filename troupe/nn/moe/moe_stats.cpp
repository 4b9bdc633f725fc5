#include "troupe/nn/moe/moe_stats.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

namespace troupe {
namespace {

at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) {
  return !a.defined() ? b : !b.defined() ? a : a + b;
}

}  // namespace

MoeStats& MoeStats::operator+=(const MoeStats& other) {
  const at::NoGradGuard no_grad;
  counts_E = sum_of(counts_E, other.counts_E);
  dropped = sum_of(dropped, other.dropped);
  const int64_t all = microbatches + other.microbatches;
  if (score_sum.defined() && other.score_sum.defined()) {
    score_sum = (score_sum * microbatches + other.score_sum * other.microbatches) / all;
  } else {
    score_sum = sum_of(score_sum, other.score_sum);
  }
  microbatches = all;
  forced = forced || other.forced;
  saturated = sum_of(saturated, other.saturated);
  return *this;
}

}  // namespace troupe
