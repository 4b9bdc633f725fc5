// Noise that does not depend on the layout: element (t, c) is a function of the seed, the step, the
// layer, the token's global index and the column (rule R2).
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "troupe/nn/context.h"

namespace troupe {

// [T, columns] f32, uniform in [0, 1), for tokens context.first_token and on. Drawn on the CPU.
at::Tensor uniform_noise(std::string_view purpose, int64_t tokens, int64_t columns,
                         const Context& context, c10::Device device);

// x u with u uniform in [1 - eps, 1 + eps]; the gradient is multiplied by the same u.
at::Tensor jittered(const at::Tensor& x_TD, double eps, const Context& context);

}  // namespace troupe
