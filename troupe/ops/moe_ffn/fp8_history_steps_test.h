// Histories of 8-bit operands for tests: the largest values of each operand, newest step first.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <memory>
#include <vector>

#include "troupe/ops/moe_ffn/fp8_history.h"

namespace troupe {

using HistorySteps = std::vector<std::vector<double>>;  // [operands][steps]

inline at::Tensor tensor_of(const HistorySteps& steps) {
  std::vector<at::Tensor> operands;
  for (const auto& operand : steps) operands.push_back(at::tensor(operand, at::kFloat));
  return at::stack(operands);
}
inline at::Tensor newest(const HistorySteps& steps) {
  return tensor_of(steps).select(1, 0);
}
inline at::Tensor largest_of(const std::vector<at::Tensor>& operands) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& x : operands) out.push_back(x.detach().abs().max().to(at::kFloat));
  return at::stack(out);
}

// A history whose memory can be read.
struct HistoryInMemory : Fp8History {
  explicit HistoryInMemory(at::Tensor maxima) : steps(std::move(maxima)) { use(steps); }
  at::Tensor steps;
};
inline Fp8Options delayed(const HistorySteps& steps, const at::Device& device = at::kCPU) {
  return {.recipe = Fp8Recipe::kDelayed,
          .history = std::make_shared<HistoryInMemory>(tensor_of(steps).to(device))};
}
inline at::Tensor steps_of(const Fp8Options& fp8) {
  return static_cast<const HistoryInMemory&>(*fp8.history).steps.cpu();
}

}  // namespace troupe
