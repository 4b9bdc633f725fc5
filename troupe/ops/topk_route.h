#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

namespace troupe {

std::tuple<at::Tensor, at::Tensor, at::Tensor> topk_route(const at::Tensor& logits_TE, int64_t K,
                                                          bool renormalize);

}  // namespace troupe
