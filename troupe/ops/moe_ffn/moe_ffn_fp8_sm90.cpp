#include "troupe/ops/moe_ffn/moe_ffn_fp8_sm90.h"

#include "troupe/kernels/combine/combine.h"
#include "troupe/ops/moe_ffn/fp8_sm90.h"

namespace troupe {
namespace {

// What both directions share.
class Fp8Layer : protected Fp8Sm90 {
 protected:
  Fp8Layer(const at::Tensor& like, const Plan& plan)
      : Fp8Sm90(like, plan_ref(plan, "moe_ffn_fp8")) {}

  at::Tensor summed(const at::Tensor& rows) const {
    at::Tensor out = empty({plan().tokens, rows.size(1)});
    launch(Combine{.plan = plan(), .y = view(rows, "rows"), .out = mut_view(out, "out")},
           &CudaKernels::combine);
    return out;
  }
};

class Fp8ForwardPass : Fp8Layer {
 public:
  Fp8ForwardPass(const FfnCall& call, bool keep, const Fp8Options& fp8)
      : Fp8Layer(call.x, call.plan),
        keep_(keep),
        fp8_(fp8),
        x_(call.x.contiguous()),
        weights_(call.weights.contiguous()),
        w1_(call.experts.w1),
        w2_(call.experts.w2) {}

  Fp8Forward run() const {
    const int64_t F = w2_.size(2), R = plan().rows;
    const Rows x = rows_in_8_bits(x_);
    const Fp8Weight w1 = weight(fp8_, Fp8Weights::kIn, w1_, keep_);
    const Fp8Weight w2 = weight(fp8_, Fp8Weights::kOut, w2_, keep_);
    const at::Tensor h = empty({R, 2 * F}), a = empty({R, F}, at::kByte);
    const at::Tensor a_scales = row_scales(F, R);
    launch(MoeUpFp8Sm90{.plan = plan(),
                        .x = bytes(x.bytes, "x8"),
                        .x_scales = scales(x.scales, "x8 scales"),
                        .w1 = bytes(w1.bytes, "w1"),
                        .w1_scales = scales(w1.scales, "w1 scales"),
                        .score = scales(weights_, "weights"),
                        .h = mut_view(h, "hidden"),
                        .a = mat<uint8_t>(a, "act"),
                        .a_scales = ptr<float>(a_scales, "act scales")},
           &CudaKernels::moe_up_fp8_sm90);
    Fp8Forward out{.out = summed(product(a, a_scales, w2, /*whole_rows=*/false)), .kept = {}};
    if (keep_) {
      out.kept = {x.bytes, x.scales, h, w1.transposed, w1.scales, w2.transposed, w2.scales};
    }
    return out;
  }

 private:
  bool keep_;
  const Fp8Options& fp8_;
  at::Tensor x_, weights_, w1_, w2_;
};

class Fp8BackwardPass : Fp8Layer {
 public:
  explicit Fp8BackwardPass(const Fp8Backward& call)
      : Fp8Layer(call.grad_out, call.plan),
        call_(call),
        kept_(call.kept),
        grad_out_(call.grad_out.contiguous()),
        weights_(call.weights.contiguous()),
        experts_(plan().experts),
        width_(grad_out_.size(1)),
        hidden_(call.kept.hidden.size(1) / 2) {}

  std::array<at::Tensor, 4> run() const {
    std::array<at::Tensor, 4> out;
    const Rows dO = rows_in_8_bits(grad_out_);
    out[1] = empty(weights_.sizes(), at::kFloat);
    if (all_in_8_bits()) {
      in_8_bits(dO, out);
    } else {
      by_way_of_bf16(dO, out);
    }
    if (!call_.needs[1]) out[1] = at::Tensor();
    return out;
  }

  Fp8RowsHalf rows_half() const {
    Fp8RowsHalf out;
    Fp8Between& left = out.left;
    left.grad_out = rows_in_8_bits(grad_out_);
    out.grads[1] = empty(weights_.sizes(), at::kFloat);
    if (all_in_8_bits()) {
      left.grad_hidden = empty_tiles(2 * hidden_, true, true);
      left.act = empty_tiles(hidden_, false, true);
      hidden_tiles(left.grad_out, left.grad_hidden, left.act, out.grads[1]);
    } else {
      tiles_by_way_of_bf16(left, out.grads[1]);
    }
    if (call_.needs[0]) out.grads[0] = gradient_of_x(left.grad_hidden);
    left.grad_hidden.rows = left.grad_hidden.row_scales = at::Tensor();
    if (!call_.needs[1]) out.grads[1] = at::Tensor();
    return out;
  }

  std::array<at::Tensor, 4> weights_half(const Fp8Between& left) const {
    std::array<at::Tensor, 4> out;
    if (call_.needs[3]) {
      out[3] = empty({experts_, width_, hidden_});
      if (call_.weight_grad) {
        weight_gradient(left.grad_out.bytes, left.act, out[3], false);
      } else {
        wide_down_gradient(left.act_wide, out[3]);
      }
    }
    if (call_.needs[2]) {
      out[2] = empty({experts_, 2 * hidden_, width_});
      if (call_.weight_grad) {
        weight_gradient(kept_.x, left.grad_hidden, out[2], true);
      } else {
        wide_up_gradient(left.grad_hidden_wide, out[2]);
      }
    }
    return out;
  }

 private:
  bool all_in_8_bits() const {
    return call_.needs[0] && call_.needs[2] && call_.needs[3] && call_.weight_grad;
  }

  // Of dH and A what the products behind them read.
  void tiles_by_way_of_bf16(Fp8Between& left, const at::Tensor& grad_weights) const {
    const at::Tensor dH = empty({plan().rows, 2 * hidden_}), a = empty({plan().rows, hidden_});
    hidden_gradient(left.grad_out, dH, a, grad_weights);
    const bool columns = call_.needs[2] && call_.weight_grad;
    if (call_.needs[0] || columns) {
      left.grad_hidden = tiles(dH, columns ? kept_.x_scales : at::Tensor(), call_.needs[0]);
    }
    if (call_.needs[2] && !call_.weight_grad) left.grad_hidden_wide = dH;
    if (!call_.needs[3]) return;
    if (call_.weight_grad) {
      left.act = tiles(a, left.grad_out.scales, false);
    } else {
      left.act_wide = a;
    }
  }

  // All products in 8 bits: dH and A leave the product that makes them as the next ones read them.
  void in_8_bits(const Rows& dO, std::array<at::Tensor, 4>& out) const {
    Tiles dH = empty_tiles(2 * hidden_, true, true), a = empty_tiles(hidden_, false, true);
    hidden_tiles(dO, dH, a, out[1]);
    out[3] = empty({experts_, width_, hidden_});
    weight_gradient(dO.bytes, a, out[3], false);
    a = {};
    out[2] = empty({experts_, 2 * hidden_, width_});
    weight_gradient(kept_.x, dH, out[2], true);
    out[0] = gradient_of_x(dH);
  }

  void by_way_of_bf16(const Rows& dO, std::array<at::Tensor, 4>& out) const {
    at::Tensor dH = empty({plan().rows, 2 * hidden_}), a = empty({plan().rows, hidden_});
    hidden_gradient(dO, dH, a, out[1]);
    // What needs A comes first, and A goes before the rows of dX come.
    if (call_.needs[3]) {
      out[3] = empty({experts_, width_, hidden_});
      if (call_.weight_grad) {
        weight_gradient(dO.bytes, tiles(a, dO.scales, false), out[3], false);
      } else {
        wide_down_gradient(a, out[3]);
      }
    }
    a = at::Tensor();
    const bool columns = call_.needs[2] && call_.weight_grad;
    if (call_.needs[2]) out[2] = empty({experts_, 2 * hidden_, width_});
    if (call_.needs[2] && !call_.weight_grad) wide_up_gradient(dH, out[2]);
    if (call_.needs[0] || columns) {
      const Tiles t = tiles(dH, columns ? kept_.x_scales : at::Tensor(), call_.needs[0]);
      dH = at::Tensor();
      if (columns) weight_gradient(kept_.x, t, out[2], true);
      if (call_.needs[0]) out[0] = gradient_of_x(t);
    }
  }

  // Gradients of weights of operands that were not rounded.
  void wide_down_gradient(const at::Tensor& a, const at::Tensor& grad_w2) const {
    launch(MoeDownGradSm90{.plan = plan(),
                           .grad_out = view(grad_out_, "moe_ffn_fp8: grad_out"),
                           .a = view(a, "act"),
                           .grad_w2 = flat_out(grad_w2, "grad_w2")},
           &CudaKernels::moe_down_grad_sm90);
  }
  void wide_up_gradient(const at::Tensor& dH, const at::Tensor& grad_w1) const {
    const at::Tensor x = call_.x.contiguous();
    launch(MoeUpGradSm90{.plan = plan(),
                         .x = view(x, "moe_ffn_fp8: x"),
                         .grad_h = view(dH, "grad_hidden"),
                         .grad_w1 = flat_out(grad_w1, "grad_w1")},
           &CudaKernels::moe_up_grad_sm90);
  }

  void hidden_gradient(const Rows& dO, const at::Tensor& dH, const at::Tensor& a,
                       const at::Tensor& grad_weights) const {
    MoeHiddenGradFp8Sm90 args{.plan = plan(),
                              .grad_out = bytes(dO.bytes, "grad_out8"),
                              .grad_out_scales = scales(dO.scales, "grad_out8 scales"),
                              .w2t = bytes(kept_.w2t, "w2t"),
                              .w2_scales = scales(kept_.w2_scales, "w2 scales"),
                              .h = view(kept_.hidden, "hidden"),
                              .score = scales(weights_, "weights"),
                              .grad_h = mut_view(dH, "grad_hidden"),
                              .a = mut_view(a, "act"),
                              .grad_score = ptr<float>(grad_weights, "grad_weights")};
    const at::Tensor workspace = empty({workspace_bytes(args)}, at::kByte);
    args.workspace = workspace.mutable_data_ptr();
    launch(args, &CudaKernels::moe_hidden_grad_fp8_sm90);
  }

  void hidden_tiles(const Rows& dO, const Tiles& dH, const Tiles& a,
                    const at::Tensor& grad_weights) const {
    MoeHiddenTilesFp8Sm90 args{
        .plan = plan(),
        .grad_out = bytes(dO.bytes, "grad_out8"),
        .grad_out_scales = scales(dO.scales, "grad_out8 scales"),
        .x_scales = scales(kept_.x_scales, "x8 scales"),
        .w2t = bytes(kept_.w2t, "w2t"),
        .w2_scales = scales(kept_.w2_scales, "w2 scales"),
        .h = view(kept_.hidden, "hidden"),
        .score = scales(weights_, "weights"),
        .grad_h = mat<uint8_t>(dH.rows, "grad_hidden"),
        .grad_h_scales = ptr<float>(dH.row_scales, "grad_hidden scales"),
        .grad_h_columns = mat<uint8_t>(dH.columns, "grad_hidden columns"),
        .grad_h_column_scales = ptr<float>(dH.block_scales, "grad_hidden column scales"),
        .a_columns = mat<uint8_t>(a.columns, "act columns"),
        .a_column_scales = ptr<float>(a.block_scales, "act column scales"),
        .grad_score = ptr<float>(grad_weights, "grad_weights")};
    const at::Tensor workspace = empty({workspace_bytes(args)}, at::kByte);
    args.workspace = workspace.mutable_data_ptr();
    launch(args, &CudaKernels::moe_hidden_tiles_fp8_sm90);
  }

  at::Tensor gradient_of_x(const Tiles& dH) const {
    return summed(input_gradient(dH, kept_.w1t, kept_.w1_scales));
  }

  const Fp8Backward& call_;
  const Fp8Kept& kept_;
  at::Tensor grad_out_, weights_;
  int64_t experts_, width_, hidden_;
};

}  // namespace

std::string fp8_sm90_fault(const Sm90Form& form) {
  return sm90_fault(form, kFp8Tile);
}

Fp8Forward fp8_forward_sm90(const FfnCall& call, bool keep, const Fp8Options& fp8) {
  return Fp8ForwardPass(call, keep, fp8).run();
}

std::array<at::Tensor, 4> fp8_backward_sm90(const Fp8Backward& call) {
  return Fp8BackwardPass(call).run();
}

Fp8RowsHalf fp8_rows_backward_sm90(const Fp8Backward& call) {
  return Fp8BackwardPass(call).rows_half();
}

std::array<at::Tensor, 4> fp8_weights_backward_sm90(const Fp8Backward& call,
                                                    const Fp8Between& left) {
  return Fp8BackwardPass(call).weights_half(left);
}

}  // namespace troupe
