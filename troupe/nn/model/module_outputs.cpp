#include "troupe/nn/model/module_outputs.h"

#include <ATen/core/grad_mode.h>

#include "troupe/nn/model/model.h"

namespace troupe {

std::vector<ModuleOutput> module_outputs(Model& model, const at::Tensor& ids_BS) {
  const at::NoGradGuard no_grad;
  std::vector<ModuleOutput> out;
  const OutputHook keep = [&](const std::string& name, const at::Tensor& y) {
    out.push_back({name, y.reshape({-1, y.size(-1)}).clone()});
  };
  const Context context = {.on_output = &keep};
  const Batch batch{.ids_BS = ids_BS};
  model.logits(hidden_states(model, batch, context), context);
  return out;
}

}  // namespace troupe
