#include "troupe/nn/moe/lora_ffn.h"

#include <ATen/TensorOperators.h>

#include <algorithm>

#include "troupe/nn/moe/ffn_units.h"
#include "troupe/nn/parts/recompute.h"
#include "troupe/ops/combine.h"
#include "troupe/ops/group_bias.h"
#include "troupe/ops/grouped_gemm.h"
#include "troupe/ops/permute.h"

namespace troupe {

FfnLora::FfnLora(const LoraConfig& config, const Param& w1, const Param& w2, DropPlace up_place,
                 DropPlace down_place)
    : up(config, w1.shown.at(0), w1.shown.at(1), up_place),
      down(config, w2.shown.at(0), w2.shown.at(1), down_place) {
  const int64_t G = w1.global.at(0), F = w1.global.at(1);  // gate and up rows are cut alike
  up.b = Param::of({G, F, config.rank}, lora_b_init()).showing({G * F, config.rank});
  if (config.dora) up.m = Param::of({G, F}, lora_b_init(), Group::kNoDecay).showing({G * F});
}

void FfnLora::cut(const TensorParts& parts) {
  require_whole(up, parts.sharding.ranks());
  parts.cut(up.b, 1);
  parts.cut(down.a, 1);
}

FfnMatrices::FfnMatrices(const Param& w1, const Param& w2)
    : up(w1), down(w2), gated(w1.shown.at(w1.shown.size() - 2) != w2.shown.back()) {}

at::Tensor lora_dense_ffn(const at::Tensor& x, const FfnMatrices& w,
                          const std::optional<FfnLora>& lora, const FfnOptions& o,
                          const Context& context) {
  at::Tensor h = w.up.linear(x, w.b1);
  if (lora) h = lora->up.beside(w.up, x, h, w.b1, context);
  const at::Tensor u = ffn_units(h, w.gated, o);
  const at::Tensor y = w.down.linear(u, w.b2);
  return lora ? lora->down.beside(w.down, u, y, w.b2, context) : y;
}

Context expert_row_context(const Context& context, const ExpertRows& rows) {
  constexpr int64_t kSlot = int64_t{1} << 40;  // more than a step has tokens
  const int64_t S = rows.scores_SK.size(0), K = rows.scores_SK.size(1);
  const at::Tensor source =
      rows.plan.row_src.to(at::kLong).clamp(0, std::max<int64_t>(S - 1, 0));  // pad rows: any
  const bool named = context.index_T.defined() && S > 0;
  const at::Tensor token =
      named ? context.index_T.index_select(0, source) : source + context.first_token;
  Context out = context;
  out.index_T = token + rows.plan.row_slot.to(at::kLong).remainder(K) * kSlot;
  return out;
}

at::Tensor lora_experts_ffn(const ExpertRows& rows, const FfnMatrices& w,
                            const std::optional<ExpertFactors>& lora, const FfnOptions& o,
                            Recompute again) {
  const at::Tensor offset = rows.plan.expert_offset;
  // `factors`: A and B, or none.
  const auto product = [offset, scale = lora ? lora->scale : 0, p = lora ? lora->dropout : 0,
                        context = lora ? lora->rows : Context()](
                           const at::Tensor& x, const KeptMatrix& m, const TensorList& factors,
                           DropPlace place) {
    if (factors.empty()) return m.grouped(x, offset);
    const at::Tensor seen = dropout(x, p, place, context);
    const at::Tensor low = grouped_gemm(seen, factors[0], offset) * scale;
    return m.grouped(x, offset) + grouped_gemm(low, factors[1], offset);
  };
  at::Tensor h =
      product(permute(rows.source_SD, rows.plan), w.up,
              lora ? TensorList{lora->a1, lora->b1} : TensorList{}, DropPlace::kExpertsUp);
  if (w.b1.defined()) h = group_bias(h, w.b1, offset);
  const auto down = [product, o, matrix = w.down, gated = w.gated](const TensorList& in) {
    return product(ffn_units(in[0], gated, o), matrix, TensorList(in.begin() + 1, in.end()),
                   DropPlace::kExpertsDown);
  };
  TensorList inputs = {h};
  if (lora) inputs.insert(inputs.end(), {lora->a2, lora->b2});
  at::Tensor y = again == Recompute::kAct ? recomputed(inputs, {}, down) : down(inputs);
  if (w.b2.defined()) y = group_bias(y, w.b2, offset);
  return combine(y, rows.plan, rows.scores_SK);
}

}  // namespace troupe
