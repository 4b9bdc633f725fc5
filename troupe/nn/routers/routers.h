// All router kinds: the one list.
#pragma once

#include "troupe/core/config/one_of.h"
#include "troupe/nn/routers/expert_choice.h"
#include "troupe/nn/routers/quantile.h"
#include "troupe/nn/routers/sigmoid_bias.h"
#include "troupe/nn/routers/sinkhorn_router.h"
#include "troupe/nn/routers/table.h"
#include "troupe/nn/routers/topk_softmax.h"

namespace troupe {

using RouterConfig = OneOf<TopkSoftmaxRouting, SigmoidBiasRouting, QuantileRouting, SinkhornRouting,
                           ExpertChoiceRouting, TableRouting>;

inline std::unique_ptr<Router> build(const RouterConfig& config, const RouterShape& shape) {
  return std::visit([&](const auto& c) { return c.build(shape); }, config);
}

}  // namespace troupe
