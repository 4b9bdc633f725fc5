#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include "troupe/nn/moe/experts.h"
#include "troupe/nn/moe/ffn_units.h"
#include "troupe/nn/parts/recompute.h"
#include "troupe/ops/support/view.h"

namespace troupe {

at::Tensor loop_ffn(const ExpertRows& rows, const ExpertWeights& w, const FfnOptions& o,
                    Recompute again) {
  const Plan& plan = rows.plan;
  const at::Tensor offset = plan.expert_offset.cpu(), x = rows.source_SD;
  const at::ScalarType wide = wide_type(x);
  const bool gated = w.w1.size(1) != w.w2.size(2);
  const auto at = [&](int64_t e) { return offset.const_data_ptr<int32_t>()[e]; };
  const at::Tensor slots = plan.row_slot.to(at::kLong), sources = plan.row_src.to(at::kLong);
  const at::Tensor scores = rows.scores_SK.reshape({-1});
  const auto w1 = w.w1.unbind(), w2 = w.w2.unbind();
  const auto b1 = w.b1 ? w.b1->unbind() : std::vector<at::Tensor>(w1.size());
  const auto b2 = w.b2 ? w.b2->unbind() : std::vector<at::Tensor>(w1.size());
  std::vector<at::Tensor> y;
  for (size_t e = 0; e < w1.size(); ++e) {
    const int64_t begin = at(static_cast<int64_t>(e)), n = at(static_cast<int64_t>(e) + 1) - begin;
    const at::Tensor slot = slots.narrow(0, begin, n), pad = slot.lt(0).unsqueeze(1);
    const at::Tensor s = scores.index_select(0, slot.clamp_min(0)).unsqueeze(1).masked_fill(pad, 0);
    const at::Tensor x_e =
        x.index_select(0, sources.narrow(0, begin, n).clamp_min(0)).masked_fill(pad, 0);
    const at::Tensor h = at::linear(x_e, w1[e], b1[e]);
    const auto down = [o, wide, gated](const TensorList& in) {
      const at::Tensor u = ffn_units(in[0], gated, o);
      return at::linear((in[1] * u.to(wide)).to(in[0].scalar_type()), in[2]);
    };
    const bool twice = again == Recompute::kAct;
    at::Tensor y_e = twice ? recomputed({h, s, w2[e]}, {}, down) : down({h, s, w2[e]});
    if (b2[e].defined()) y_e = (y_e.to(wide) + s * b2[e].to(wide)).to(x.scalar_type());
    y.push_back(y_e);
  }
  y.push_back(at::zeros({1, x.size(1)}, x.options()));  // what a slot without a row adds
  const at::Tensor y_RD = at::cat(y);
  const at::Tensor none = plan.slot_row.lt(0);
  const at::Tensor row = plan.slot_row.to(at::kLong).masked_fill(none, y_RD.size(0) - 1);
  at::Tensor sum = at::zeros({row.size(0), x.size(1)}, x.options().dtype(wide));
  for (int64_t k = 0; k < row.size(1); ++k) {
    sum = sum + y_RD.index_select(0, row.select(1, k)).to(wide);
  }
  return sum.to(x.scalar_type());
}

}  // namespace troupe
