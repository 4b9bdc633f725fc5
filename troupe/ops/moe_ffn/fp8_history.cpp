#include "troupe/ops/moe_ffn/fp8_history.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "troupe/core/check.h"
#include "troupe/ops/fp8.h"

namespace troupe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestE4m3 = 448;

}  // namespace

void Fp8History::use(const at::Tensor& maxima) {
  TROUPE_CHECK(maxima.defined(), "a history of 8-bit operands without memory");
  TROUPE_CHECK(maxima.dim() == 2 && maxima.scalar_type() == at::kFloat && maxima.size(1) > 0,
               "a history of 8-bit operands must be f32 [operands, steps]; it is", maxima.sizes());
  maxima_ = maxima.detach();
  if (running_.defined() && running_.device() == maxima.device() &&
      running_.size(0) == maxima.size(0)) {
    return;
  }
  running_ = at::zeros({maxima.size(0)}, maxima_.options());
}

at::Tensor Fp8History::largest(Fp8Operand operand, const at::Tensor& own, bool counts) {
  const auto o = static_cast<int64_t>(operand);
  TROUPE_CHECK(maxima_.defined() && o < maxima_.size(0), "operand", o, "of a history of",
               maxima_.defined() ? maxima_.size(0) : 0);
  if (counts) {
    at::Tensor r = running_.narrow(0, o, 1);
    at::maximum_out(r, r, own);
  }
  const at::Tensor m = maxima_.select(0, o).amax().view({1});
  return at::where(m.gt(0).logical_and(own.lt(kInfinity)), m, own);
}

void Fp8History::forget() {
  if (running_.defined()) running_.zero_();
}

at::Tensor Fp8History::end_of_step(const std::vector<Fp8History*>& all, const Over& over_ranks) {
  TROUPE_CHECK(!all.empty(), "a step without histories of 8-bit operands");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> maxima, running;
  std::vector<int64_t> operands;
  for (const Fp8History* h : all) {
    TROUPE_CHECK(h->maxima_.defined(), "a history of 8-bit operands was never used");
    maxima.push_back(h->maxima_);
    running.push_back(h->running_);
    operands.push_back(h->maxima_.size(0));
  }
  const at::Tensor before = at::cat(maxima), own = at::cat(running);
  const at::Tensor r = over_ranks ? over_ranks(own) : own;
  const at::Tensor m = before.amax(1), finite = r.lt(kInfinity);
  const at::Tensor limit = quantize_fp8(m.unsqueeze(1), {}).scales.view({-1}) * kLargestE4m3;
  at::Tensor saturated = m.gt(0).logical_and(finite).logical_and(r.gt(limit)).sum();
  const at::Tensor moved =
      at::cat({r.unsqueeze(1), before.narrow(1, 0, before.size(1) - 1)}, /*dim=*/1);
  const at::Tensor after = at::where(finite.logical_and(r.gt(0)).unsqueeze(1), moved, before);
  at::_foreach_copy_(maxima, after.split_with_sizes(operands));
  at::_foreach_zero_(running);
  return saturated;
}

}  // namespace troupe
