#include "troupe/train/step/unit_updates.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

#include "troupe/ops/grad_norm.h"

namespace troupe {

void UnitUpdates::run(const StepGradients& gradients, const std::vector<int64_t>& buckets,
                      const std::vector<at::Tensor>& held, const at::Tensor& loss,
                      const std::function<at::Tensor(const at::Tensor&)>& sum,
                      const std::function<void()>& update) {
  wait();
  at::Tensor all = at::zeros({1}, at::TensorOptions(at::kDouble).device(device_));
  for (const auto& [place, gradient] : gradients.counted_of(buckets)) {
    const at::Tensor squares = sum_squares({gradient});
    all += squares;
    squares_[place] = squares;
  }
  if (!is_sound(all, loss, sum)) return;
  held_ = held;
  done_ = lane_.run(update);
  ++updated_;
}

bool UnitUpdates::is_sound(const at::Tensor& squares, const at::Tensor& loss,
                           const std::function<at::Tensor(const at::Tensor&)>& sum) {
  const at::Tensor one = squares.squeeze(0);
  const at::Tensor parts = at::stack({one, loss.defined() ? loss : at::zeros_like(one)});
  const at::Tensor seen = sum(parts).cpu();
  const auto* const values = seen.const_data_ptr<double>();
  total_ += values[0];
  const auto norm = static_cast<float>(std::sqrt(total_));
  sound_ = sound_ && std::isfinite(norm) && std::isfinite(values[1]);
  return sound_;
}

void UnitUpdates::wait() {
  lane_.wait(done_);
  done_ = {};
  held_.clear();
}

at::Tensor UnitUpdates::end_step() {
  wait();
  at::Tensor out = at::zeros({1}, at::TensorOptions(at::kDouble).device(device_));
  for (const auto& [place, squares] : squares_) out += squares;
  squares_.clear();
  total_ = 0;
  sound_ = true;
  updated_ = 0;
  return out;
}

}  // namespace troupe
