#include "troupe/train/recipe/experts_kernels.h"

#include "troupe/ops/grouped_gemm.h"

namespace troupe {

Sm90Form sm90_form(const ModelConfig& model, const MoeConfig& moe, const GpuProducts& products) {
  const FfnForm& form = moe.ffn.form;
  const bool swiglu = form.activation == "silu" && form.gated && !form.clamp && form.offset == 0;
  return {.width = moe.latent > 0 ? moe.latent : model.width,
          .hidden = moe.ffn.hidden / products.slices,
          .experts = moe.experts,
          .plain = swiglu && !moe.ffn.bias,
          .type = products.type,
          .gpu = products.gpu};
}

ExpertsKernels experts_kernels(const ModelConfig& model, const GpuProducts& products,
                               int64_t tokens) {
  if (products.gpu.capability == 0) return {};
  ExpertsKernels out;
  for (int64_t i = 0; i < model.layers; ++i) {
    const LayerConfig layer = layer_config(model, i);
    if (!layer.moe) continue;
    const MoeConfig& moe = *layer.moe;
    if (moe.ffn.impl != ExpertsImpl::kGrouped) {
      return {.line = "experts: " + to_text(moe.ffn.impl) + " (model.moe.impl)"};
    }
    const Sm90Form form = sm90_form(model, moe, products);
    const std::string why = sm90_fault(form);
    if (!why.empty()) {
      return {.line =
                  "experts: grouped products with the activation between them, not the fused "
                  "kernels for Hopper: " +
                  why + "; " + grouped_gemm_tiles(products.gpu.capability)};
    }
    out.line = "experts: fused kernels for Hopper";
    if (out.fused.empty()) out.fused = sm90_kernel_lines(form, tokens * moe.top_k, products.trial);
  }
  return out;
}

}  // namespace troupe
