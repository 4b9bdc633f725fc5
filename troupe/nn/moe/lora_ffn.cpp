#include "troupe/nn/moe/lora_ffn.h"

#include <ATen/TensorOperators.h>

#include "troupe/nn/moe/ffn_units.h"
#include "troupe/nn/parts/linear_product.h"
#include "troupe/nn/parts/recompute.h"
#include "troupe/ops/combine.h"
#include "troupe/ops/group_bias.h"
#include "troupe/ops/grouped_gemm.h"
#include "troupe/ops/permute.h"

namespace troupe {

FfnLora::FfnLora(const LoraConfig& config, const Param& w1, const Param& w2)
    : up(config, w1.shown.at(0), w1.shown.at(1)), down(config, w2.shown.at(0), w2.shown.at(1)) {}

at::Tensor lora_dense_ffn(const at::Tensor& x, const ExpertWeights& w, const FfnLora& lora,
                          const FfnOptions& o) {
  const at::Tensor w1 = w.w1.squeeze(0), w2 = w.w2.squeeze(0);
  const at::Tensor b1 = w.b1 ? w.b1->squeeze(0) : at::Tensor();
  const at::Tensor b2 = w.b2 ? w.b2->squeeze(0) : at::Tensor();
  const at::Tensor h = linear_product(x, w1, b1) + lora.up.delta(x);
  const at::Tensor u = ffn_units(h, /*gated=*/w1.size(0) != w2.size(1), o);
  return linear_product(u, w2, b2) + lora.down.delta(u);
}

at::Tensor lora_experts_ffn(const ExpertRows& rows, const ExpertWeights& w,
                            const ExpertFactors& lora, const FfnOptions& o, Recompute again) {
  const at::Tensor offset = rows.plan.expert_offset;
  const auto product = [offset, scale = lora.scale](const at::Tensor& x, const at::Tensor& weight,
                                                    const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor low = grouped_gemm(x, a, offset) * scale;
    return grouped_gemm(x, weight, offset) + grouped_gemm(low, b, offset);
  };
  const bool gated = w.w1.size(1) != w.w2.size(2);
  at::Tensor h = product(permute(rows.source_SD, rows.plan), w.w1, lora.a1, lora.b1);
  if (w.b1) h = group_bias(h, *w.b1, offset);
  const auto down = [product, o, gated](const TensorList& in) {
    return product(ffn_units(in[0], gated, o), in[1], in[2], in[3]);
  };
  const TensorList inputs = {h, w.w2, lora.a2, lora.b2};
  at::Tensor y = again == Recompute::kAct ? recomputed(inputs, {}, down) : down(inputs);
  if (w.b2) y = group_bias(y, *w.b2, offset);
  return combine(y, rows.plan, rows.scores_SK);
}

}  // namespace troupe
