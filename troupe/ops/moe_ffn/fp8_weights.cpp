#include "troupe/ops/moe_ffn/fp8_weights.h"

#include <utility>

namespace troupe {
namespace {

int64_t write_count(const at::Tensor& w) {
  return w.is_inference() ? 0 : static_cast<int64_t>(w._version());
}

}  // namespace

const Fp8Weight& Fp8Weights::get(Which which, const at::Tensor& w,
                                 const std::function<Fp8Weight()>& round) {
  if (!holds(which, w)) put(which, w, round(), nullptr);
  const Entry& e = entries_.at(which);
  if (e.wait) e.wait();
  return e.weight;
}

bool Fp8Weights::holds(Which which, const at::Tensor& w) const {
  const Entry& e = entries_.at(which);
  return e.source.defined() && e.source.const_data_ptr() == w.const_data_ptr() &&
         e.source.sizes() == w.sizes() && e.version == write_count(w);
}

void Fp8Weights::put(Which which, const at::Tensor& w, const Fp8Weight& copy,
                     std::function<void()> wait) {
  // An assignment would free the old copy before its wait.
  const Entry old =
      std::exchange(entries_.at(which), Entry{w.detach(), write_count(w), copy, std::move(wait)});
}

}  // namespace troupe
