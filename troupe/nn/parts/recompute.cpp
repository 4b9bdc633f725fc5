#include "troupe/nn/parts/recompute.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "troupe/ops/support/late.h"

namespace troupe {

at::Tensor recomputed(const TensorList& inputs, const TensorList& leaves,
                      const std::function<at::Tensor(const TensorList&)>& f) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = f(inputs);
  }
  TensorList all = inputs;
  all.insert(all.end(), leaves.begin(), leaves.end());
  record({.name = "recomputed",
          .inputs = all,
          .outputs = {y},
          .saved = all,
          .backward = [f, n = inputs.size(),
                       late = LateScope::current()](const Gradients& g) -> TensorList {
            const at::AutoGradMode with_grad(true);
            const LateScope scope(late);
            TensorList again, wanted, out(g.saved.size());
            for (size_t i = 0; i < n; ++i) {
              const at::Tensor& x = g.saved[i];
              again.push_back(x.defined() ? x.detach().requires_grad_(g.needs[i]) : x);
            }
            for (size_t i = 0; i < g.saved.size(); ++i) {
              if (g.needs[i]) wanted.push_back(i < n ? again[i] : g.saved[i]);
            }
            const TensorList grads =
                torch::autograd::grad({f(again)}, wanted, {g.outputs[0]}, std::nullopt,
                                      /*create_graph=*/false, /*allow_unused=*/true);
            for (size_t i = 0, j = 0; i < out.size(); ++i) {
              if (g.needs[i]) out[i] = grads[j++];
            }
            return out;
          }});
  return y;
}

std::array<at::Tensor, 2> forked(const at::Tensor& x) {
  if (!wants_grad({x})) return {x, x};
  // The same memory, no views in autograd's sense.
  std::array<at::Tensor, 2> out = {x.variable_data(), x.variable_data()};
  record(
      {.name = "forked",
       .inputs = {x},
       .outputs = {out[0], out[1]},
       .saved = {},
       .backward = [](const Gradients& g) -> TensorList { return {g.outputs[0] + g.outputs[1]}; }});
  return out;
}

}  // namespace troupe
