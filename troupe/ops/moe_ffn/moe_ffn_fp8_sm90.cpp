#include "troupe/ops/moe_ffn/moe_ffn_fp8_sm90.h"

#include <utility>

#include "troupe/kernels/combine/combine.h"
#include "troupe/ops/moe_ffn/fp8_sm90.h"

namespace troupe {
namespace {

class Fp8Sm90Ffn : public FfnBackend, Fp8Sm90 {
  using In = FfnInput;

 public:
  Fp8Sm90Ffn(const Fp8Operands& operands, bool weight_grad)
      : Fp8Sm90(operands.scores, plan_ref(operands.plan, "moe_ffn_fp8")),
        in_(operands),
        scores_(operands.scores.contiguous()),
        weight_grad_(weight_grad) {}

  FfnUp up(bool) const override {
    const int64_t F = in_.w2.bytes.size(1), R = plan().rows;
    FfnUp out{.hidden = empty({R, 2 * F}),
              .act = empty({R, F}, at::kByte),
              .act_scales = row_scales(F, R)};
    launch(MoeUpFp8Sm90{.plan = plan(),
                        .x = bytes(in_.x8.bytes, "x8"),
                        .x_scales = scales(in_.x8.scales, "x8 scales"),
                        .w1 = bytes(in_.w1.bytes, "w1"),
                        .w1_scales = scales(in_.w1.scales, "w1 scales"),
                        .score = scales(scores_, "weights"),
                        .h = mut_view(out.hidden, "hidden"),
                        .a = mat<uint8_t>(out.act, "act"),
                        .a_scales = ptr<float>(out.act_scales, "act scales")},
           &CudaKernels::moe_up_fp8_sm90);
    return out;
  }

  at::Tensor down(const FfnUp& up) const override {
    return summed(product(up.act, up.act_scales, in_.w2, /*whole_rows=*/false));
  }

  // Where all products are in 8 bits, dH and A leave the product that makes them as the next ones
  // read them.
  FfnBetween hidden_grad(const FfnHiddenGrad& of) const override {
    const at::Tensor dO = of.grad_out.contiguous();
    FfnBetween out{.needs = of.needs, .in_8_bits = std::make_shared<Fp8Between>()};
    Fp8Between& tiled = *out.in_8_bits;
    tiled.grad_out = rows_in_8_bits(dO);
    out.grads[In::kScores] = empty(scores_.sizes(), at::kFloat);
    if (weight_grad_ && of.needs[In::kX] && of.needs[In::kW1] && of.needs[In::kW2]) {
      tiled.grad_hidden = empty_tiles(2 * hidden(), true, true);
      tiled.act = empty_tiles(hidden(), false, true);
      hidden_tiles(out, of.hidden);
      return out;
    }
    if (!weight_grad_) out.grad_out = dO;
    out.grad_hidden = empty({plan().rows, 2 * hidden()});
    out.act = empty({plan().rows, hidden()});
    hidden_gradient(out, of.hidden);
    if (of.weights_later) {
      tile_grad_hidden(out);
      if (weight_grad_ && of.needs[In::kW2]) tile_act(out);
      if (weight_grad_ || !of.needs[In::kW2]) out.act = at::Tensor();
    }
    return out;
  }

  FfnGradTensors rows_grad(const FfnNeeds& needs, FfnBetween& between) const override {
    FfnGradTensors out;
    if (!needs[In::kX]) return out;
    tile_grad_hidden(between);
    Tiles& dH = between.in_8_bits->grad_hidden;
    out[In::kX] = summed(input_gradient(dH, in_.w1.transposed, in_.w1.scales));
    dH.rows = dH.row_scales = at::Tensor();
    return out;
  }

  FfnGradTensors weight_grad(const FfnNeeds& needs, FfnBetween& between) const override {
    FfnGradTensors out;
    if (needs[In::kW2]) out[In::kW2] = gradient_of_w2(between);
    if (needs[In::kW1]) out[In::kW1] = gradient_of_w1(between);
    return out;
  }

  std::vector<FfnStep> order() const override {
    return {FfnStep::kDown, FfnStep::kUp, FfnStep::kRows};
  }

 private:
  int64_t width() const { return in_.w2.transposed.size(1); }
  int64_t hidden() const { return in_.w1.transposed.size(1) / 2; }

  at::Tensor summed(const at::Tensor& rows) const {
    at::Tensor out = empty({plan().tokens, rows.size(1)});
    launch(Combine{.plan = plan(), .y = view(rows, "rows"), .out = mut_view(out, "out")},
           &CudaKernels::combine);
    return out;
  }

  // Of one reading, for what is still to be made of it: along rows for dX, transposed for dW1. The
  // bf16 rows go, unless dW1 reads them.
  void tile_grad_hidden(FfnBetween& between) const {
    Tiles& dH = between.in_8_bits->grad_hidden;
    if (dH.rows.defined() || dH.columns.defined()) return;
    const bool rows = between.needs[In::kX], columns = between.needs[In::kW1] && weight_grad_;
    if (rows || columns) {
      dH = tiles(between.grad_hidden, columns ? in_.x8.scales : at::Tensor(), rows);
    }
    if (columns || !between.needs[In::kW1]) between.grad_hidden = at::Tensor();
  }

  void tile_act(FfnBetween& between) const {
    Fp8Between& tiled = *between.in_8_bits;
    if (!tiled.act.columns.defined()) tiled.act = tiles(between.act, tiled.grad_out.scales, false);
  }

  at::Tensor gradient_of_w2(FfnBetween& between) const {
    at::Tensor out = empty({plan().experts, width(), hidden()});
    if (weight_grad_) {
      tile_act(between);
      Fp8Between& tiled = *between.in_8_bits;
      weight_gradient(tiled.grad_out.bytes, std::exchange(tiled.act, {}), out, false);
    } else {
      wide_down_gradient(between, out);
    }
    return out;
  }

  at::Tensor gradient_of_w1(FfnBetween& between) const {
    at::Tensor out = empty({plan().experts, 2 * hidden(), width()});
    if (weight_grad_) {
      tile_grad_hidden(between);
      weight_gradient(in_.x8.bytes, between.in_8_bits->grad_hidden, out, true);
    } else {
      wide_up_gradient(between.grad_hidden, out);
    }
    return out;
  }

  // Gradients of weights of operands that were not rounded.
  void wide_down_gradient(const FfnBetween& between, const at::Tensor& grad_w2) const {
    launch(MoeDownGradSm90{.plan = plan(),
                           .grad_out = view(between.grad_out, "moe_ffn_fp8: grad_out"),
                           .a = view(between.act, "act"),
                           .grad_w2 = flat_out(grad_w2, "grad_w2")},
           &CudaKernels::moe_down_grad_sm90);
  }
  void wide_up_gradient(const at::Tensor& dH, const at::Tensor& grad_w1) const {
    const at::Tensor x = in_.x.contiguous();
    launch(MoeUpGradSm90{.plan = plan(),
                         .x = view(x, "moe_ffn_fp8: x"),
                         .grad_h = view(dH, "grad_hidden"),
                         .grad_w1 = flat_out(grad_w1, "grad_w1")},
           &CudaKernels::moe_up_grad_sm90);
  }

  void hidden_gradient(const FfnBetween& out, const at::Tensor& hidden) const {
    const Rows& dO = out.in_8_bits->grad_out;
    MoeHiddenGradFp8Sm90 args{.plan = plan(),
                              .grad_out = bytes(dO.bytes, "grad_out8"),
                              .grad_out_scales = scales(dO.scales, "grad_out8 scales"),
                              .w2t = bytes(in_.w2.transposed, "w2t"),
                              .w2_scales = scales(in_.w2.scales, "w2 scales"),
                              .h = view(hidden, "hidden"),
                              .score = scales(scores_, "weights"),
                              .grad_h = mut_view(out.grad_hidden, "grad_hidden"),
                              .a = mut_view(out.act, "act"),
                              .grad_score = ptr<float>(out.grads[In::kScores], "grad_weights")};
    const at::Tensor workspace = empty({workspace_bytes(args)}, at::kByte);
    args.workspace = workspace.mutable_data_ptr();
    launch(args, &CudaKernels::moe_hidden_grad_fp8_sm90);
  }

  void hidden_tiles(const FfnBetween& out, const at::Tensor& hidden) const {
    const auto& [dO, dH, a] = *out.in_8_bits;
    MoeHiddenTilesFp8Sm90 args{
        .plan = plan(),
        .grad_out = bytes(dO.bytes, "grad_out8"),
        .grad_out_scales = scales(dO.scales, "grad_out8 scales"),
        .x_scales = scales(in_.x8.scales, "x8 scales"),
        .w2t = bytes(in_.w2.transposed, "w2t"),
        .w2_scales = scales(in_.w2.scales, "w2 scales"),
        .h = view(hidden, "hidden"),
        .score = scales(scores_, "weights"),
        .grad_h = mat<uint8_t>(dH.rows, "grad_hidden"),
        .grad_h_scales = ptr<float>(dH.row_scales, "grad_hidden scales"),
        .grad_h_columns = mat<uint8_t>(dH.columns, "grad_hidden columns"),
        .grad_h_column_scales = ptr<float>(dH.block_scales, "grad_hidden column scales"),
        .a_columns = mat<uint8_t>(a.columns, "act columns"),
        .a_column_scales = ptr<float>(a.block_scales, "act column scales"),
        .grad_score = ptr<float>(out.grads[In::kScores], "grad_weights")};
    const at::Tensor workspace = empty({workspace_bytes(args)}, at::kByte);
    args.workspace = workspace.mutable_data_ptr();
    launch(args, &CudaKernels::moe_hidden_tiles_fp8_sm90);
  }

  Fp8Operands in_;
  at::Tensor scores_;
  bool weight_grad_;
};

}  // namespace

std::string fp8_sm90_fault(const Sm90Form& form) {
  return sm90_fault(form, kFp8Tile);
}

Fp8Operands fp8_operands(const FfnCall& call, bool backward, const Fp8Options& fp8) {
  const Fp8Sm90 calls(call.weights, plan_ref(call.plan, "moe_ffn_fp8"));
  Fp8Operands out{
      .x = call.x, .x8 = {}, .w1 = {}, .w2 = {}, .scores = call.weights, .plan = call.plan};
  out.x8 = Fp8Sm90::rows_in_8_bits(call.x.contiguous());
  out.w1 = calls.weight(fp8, Fp8Weights::kIn, call.experts.w1, backward);
  out.w2 = calls.weight(fp8, Fp8Weights::kOut, call.experts.w2, backward);
  return out;
}

std::unique_ptr<FfnBackend> fp8_sm90_ffn(const Fp8Operands& operands, bool weight_grad) {
  return std::make_unique<Fp8Sm90Ffn>(operands, weight_grad);
}

}  // namespace troupe
