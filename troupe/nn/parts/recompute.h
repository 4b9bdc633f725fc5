// A part of the graph that keeps its inputs only and is computed again in backward (rule M2).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>

#include "troupe/ops/support/autograd.h"

namespace troupe {

// f(inputs), with a graph that holds the inputs alone. `leaves` are the parameters that f reads by
// itself. f runs twice and must do the same both times: what it counts, draws or chooses has to
// come in as an input or be a function of keys.
at::Tensor recomputed(const TensorList& inputs, const TensorList& leaves,
                      const std::function<at::Tensor(const TensorList&)>& f);

// x for two users, without a copy. Their gradients are added here and nowhere else: a sum of three,
// ((a, b), c), then has one order, whether a part of the graph is recomputed or not.
std::array<at::Tensor, 2> forked(const at::Tensor& x);

}  // namespace troupe
