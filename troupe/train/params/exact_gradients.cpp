#include "troupe/train/params/exact_gradients.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <atomic>
#include <mutex>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr int64_t kGrain = 1 << 15;  // elements of a thread

void check_pairs(const at::Tensor& pairs) {
  TROUPE_CHECK(pairs.is_cpu() && pairs.scalar_type() == at::kLong && pairs.is_contiguous(),
               "pairs are contiguous int64 on the CPU; these are", pairs.scalar_type(), "on",
               pairs.device().str());
}

}  // namespace

bool add_to_pairs(const at::Tensor& pairs, const at::Tensor& x) {
  check_pairs(pairs);
  TROUPE_CHECK(pairs.numel() == pair_elements(x.numel()) && x.scalar_type() != at::kDouble, "-",
               x.numel(), "numbers of type", x.scalar_type(), "for", pairs.numel(), "integers");
  const at::Tensor wide = x.to(at::kFloat).contiguous();
  auto* const to = pairs.mutable_data_ptr<int64_t>();
  const auto* const from = wide.const_data_ptr<float>();
  std::atomic<bool> fits = true;
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    bool all = true;
    for (int64_t i = begin; i < end; ++i) {
      all &= add_to_pair(to + 2 * i, static_cast<double>(from[i]));
    }
    if (!all) fits = false;
  });
  return fits;
}

at::Tensor values_of_pairs(const at::Tensor& pairs) {
  check_pairs(pairs);
  at::Tensor out = at::empty({pairs.numel() / 2}, pairs.options().dtype(at::kFloat));
  const auto* const from = pairs.const_data_ptr<int64_t>();
  auto* const to = out.mutable_data_ptr<float>();
  at::parallel_for(0, out.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = value_of_pair(from + 2 * i);
  });
  return out;
}

ExactSum exact_squares(const std::vector<at::Tensor>& tensors) {
  ExactSum all;
  std::mutex mutex;
  for (const at::Tensor& x : tensors) {
    TROUPE_CHECK(x.is_cpu() && x.scalar_type() == at::kFloat, "squares of", x.scalar_type(), "on",
                 x.device().str());
    const at::Tensor flat = x.contiguous();
    const auto* const from = flat.const_data_ptr<float>();
    at::parallel_for(0, flat.numel(), kGrain, [&](int64_t begin, int64_t end) {
      ExactSum own;
      for (int64_t i = begin; i < end; ++i) {
        const auto wide = static_cast<double>(from[i]);
        own.add(wide * wide);  // exact
      }
      const std::lock_guard lock(mutex);
      all.add(own);
    });
  }
  return all;
}

}  // namespace troupe
