#include "troupe/ops/moe_ffn/moe_ffn_fp8_sm90.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/combine/combine.h"
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/ops/fp8.h"
#include "troupe/ops/support/run.h"

namespace troupe {
namespace {

Mat<const uint8_t> bytes(const at::Tensor& x, const char* name) {
  return mat<const uint8_t>(x, name);
}
const float* scales(const at::Tensor& x, const char* name) {
  return ptr<const float>(x, name);
}

// What both directions share: where tensors live, and how kernels are launched there.
class Fp8Layer {
 public:
  Fp8Layer(const at::Tensor& like, const Plan& plan)
      : options_(like.options().dtype(at::kBFloat16)), plan_(plan_ref(plan, "moe_ffn_fp8")) {}

 protected:
  template <class Args>
  void launch(const Args& args, void (*CudaKernels::*kernel)(const Args&, cudaStream_t)) const {
    run_cuda(options_.device(), args, kernel);
  }
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType type = at::kBFloat16) const {
    return at::empty(sizes, options_.dtype(type));
  }

  // A scale for each row and 128 columns, and what is read behind them.
  at::Tensor row_scales(int64_t columns, int64_t rows) const {
    return empty({columns / kFp8Tile * rows + kScalesBehind}, at::kFloat);
  }

  // Whole rows with a scale each, [T, D] and [T].
  struct Rows {
    at::Tensor bytes, scales;
  };
  static Rows rows_in_8_bits(const at::Tensor& x) {
    const Fp8Matrix q = quantize_fp8(x, {});
    return {q.bytes.view(at::kByte), q.scales.view({-1})};
  }

  at::Tensor summed(const at::Tensor& rows) const {
    at::Tensor out = empty({plan_.tokens, rows.size(1)});
    launch(Combine{.plan = plan_, .y = view(rows, "rows"), .out = mut_view(out, "out")},
           &CudaKernels::combine);
    return out;
  }

  at::TensorOptions options_;
  PlanRef plan_;
};

class Fp8ForwardPass : Fp8Layer {
 public:
  Fp8ForwardPass(const FfnCall& call, bool keep, Fp8Weights* kept)
      : Fp8Layer(call.x, call.plan),
        keep_(keep),
        kept_(kept),
        x_(call.x.contiguous()),
        weights_(call.weights.contiguous()),
        w1_(call.experts.w1),
        w2_(call.experts.w2) {}

  Fp8Forward run() const {
    const int64_t D = x_.size(1), F = w2_.size(2), R = plan_.rows;
    const Rows x = rows_in_8_bits(x_);
    const Fp8Weight w1 = weight(Fp8Weights::kUp, w1_), w2 = weight(Fp8Weights::kDown, w2_);
    const at::Tensor h = empty({R, 2 * F}), a = empty({R, F}, at::kByte);
    const at::Tensor a_scales = row_scales(F, R), y = empty({R, D});
    launch(MoeUpFp8Sm90{.plan = plan_,
                        .x = bytes(x.bytes, "x8"),
                        .x_scales = scales(x.scales, "x8 scales"),
                        .w1 = bytes(w1.bytes, "w1"),
                        .w1_scales = scales(w1.scales, "w1 scales"),
                        .score = scales(weights_, "weights"),
                        .h = mut_view(h, "hidden"),
                        .a = mat<uint8_t>(a, "act"),
                        .a_scales = ptr<float>(a_scales, "act scales")},
           &CudaKernels::moe_up_fp8_sm90);
    launch(MoeDownFp8Sm90{.plan = plan_,
                          .a = bytes(a, "act"),
                          .a_scales = scales(a_scales, "act scales"),
                          .w2 = bytes(w2.bytes, "w2"),
                          .w2_scales = scales(w2.scales, "w2 scales"),
                          .y = mut_view(y, "y")},
           &CudaKernels::moe_down_fp8_sm90);
    Fp8Forward out{.out = summed(y), .kept = {}};
    if (keep_) {
      out.kept = {x.bytes, x.scales, h, w1.transposed, w1.scales, w2.transposed, w2.scales};
    }
    return out;
  }

 private:
  // Forward's copy, and backward's, of one reading. One that is kept is for both.
  Fp8Weight weight(Fp8Weights::Which which, const at::Tensor& w) const {
    if (kept_ == nullptr) return rounded(w, keep_);
    return kept_->get(which, w, [&] { return rounded(w, /*backward=*/true); });
  }
  Fp8Weight rounded(const at::Tensor& weight, bool backward) const {
    const at::Tensor w = weight.contiguous();
    const int64_t E = w.size(0), N = w.size(1), K = w.size(2);
    const int64_t blocks = E * N / kFp8Tile * (K / kFp8Tile);
    Fp8Weight out{empty({E * N, K}, at::kByte), {}, empty({blocks + kScalesBehind}, at::kFloat)};
    if (backward) out.transposed = empty({E * K, N}, at::kByte);
    launch(Fp8WeightTiles{.w = flat_view(w, "moe_ffn_fp8: w1 or w2"),
                          .matrix_rows = N,
                          .rows = mat<uint8_t>(out.bytes, "rows"),
                          .transposed =
                              backward ? ptr<uint8_t>(out.transposed, "transposed") : nullptr,
                          .scales = ptr<float>(out.scales, "scales")},
           &CudaKernels::fp8_weight_tiles);
    return out;
  }

  bool keep_;
  Fp8Weights* kept_;
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
        experts_(call.plan.expert_offset.size(0) - 1),
        width_(call.kept.x.size(1)),
        hidden_(call.kept.hidden.size(1) / 2) {}

  std::array<at::Tensor, 4> run() const {
    std::array<at::Tensor, 4> out;
    const Rows dO = rows_in_8_bits(grad_out_);
    out[1] = empty(weights_.sizes(), at::kFloat);
    const bool all = call_.needs[0] && call_.needs[2] && call_.needs[3];
    if (all && call_.weight_grad) {
      in_8_bits(dO, out);
    } else {
      by_way_of_bf16(dO, out);
    }
    if (!call_.needs[1]) out[1] = at::Tensor();
    return out;
  }

 private:
  // Rows packed by expert in 8 bits: along rows, and transposed with a factor taken up.
  struct Tiles {
    at::Tensor rows, row_scales, columns, block_scales;
  };

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
    at::Tensor dH = empty({plan_.rows, 2 * hidden_}), a = empty({plan_.rows, hidden_});
    hidden_gradient(dO, dH, a, out[1]);
    // What needs A comes first, and A goes before the rows of dX come.
    if (call_.needs[3]) {
      out[3] = empty({experts_, width_, hidden_});
      if (call_.weight_grad) {
        weight_gradient(dO.bytes, tiles(a, dO.scales, false), out[3], false);
      } else {
        launch(MoeDownGradSm90{.plan = plan_,
                               .grad_out = view(grad_out_, "moe_ffn_fp8: grad_out"),
                               .a = view(a, "act"),
                               .grad_w2 = flat_out(out[3], "grad_w2")},
               &CudaKernels::moe_down_grad_sm90);
      }
    }
    a = at::Tensor();
    const bool columns = call_.needs[2] && call_.weight_grad;
    if (call_.needs[2]) out[2] = empty({experts_, 2 * hidden_, width_});
    if (call_.needs[2] && !call_.weight_grad) {
      const at::Tensor x = call_.x.contiguous();
      launch(MoeUpGradSm90{.plan = plan_,
                           .x = view(x, "moe_ffn_fp8: x"),
                           .grad_h = view(dH, "grad_hidden"),
                           .grad_w1 = flat_out(out[2], "grad_w1")},
             &CudaKernels::moe_up_grad_sm90);
    }
    if (call_.needs[0] || columns) {
      const Tiles t = tiles(dH, columns ? kept_.x_scales : at::Tensor(), call_.needs[0]);
      dH = at::Tensor();
      if (columns) weight_gradient(kept_.x, t, out[2], true);
      if (call_.needs[0]) out[0] = gradient_of_x(t);
    }
  }

  Tiles empty_tiles(int64_t C, bool rows, bool columns) const {
    const int64_t R = plan_.rows, blocks = fp8_row_blocks(R, experts_);
    Tiles out;
    if (rows) {
      out.rows = empty({R, C}, at::kByte);
      out.row_scales = row_scales(C, R);
    }
    if (columns) {
      out.columns = empty({C, blocks * kFp8Tile}, at::kByte);
      out.block_scales = empty({blocks, C / kFp8Tile}, at::kFloat);
    }
    return out;
  }

  Tiles tiles(const at::Tensor& x, const at::Tensor& factor, bool rows) const {
    Tiles out = empty_tiles(x.size(1), rows, factor.defined());
    Fp8RowTiles args{.x = view(x, "rows"),
                     .expert_offset = plan_.expert_offset,
                     .experts = experts_,
                     .row_src = plan_.row_src};
    if (rows) {
      args.rows = mat<uint8_t>(out.rows, "rows in 8 bits");
      args.row_scales = ptr<float>(out.row_scales, "their scales");
    }
    if (factor.defined()) {
      args.factor = scales(factor, "factor");
      args.columns = ptr<uint8_t>(out.columns, "columns in 8 bits");
      args.block_scales = ptr<float>(out.block_scales, "their scales");
    }
    launch(args, &CudaKernels::fp8_row_tiles);
    return out;
  }

  void hidden_gradient(const Rows& dO, const at::Tensor& dH, const at::Tensor& a,
                       const at::Tensor& grad_weights) const {
    MoeHiddenGradFp8Sm90 args{.plan = plan_,
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
        .plan = plan_,
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

  void weight_gradient(const at::Tensor& source, const Tiles& t, const at::Tensor& grad,
                       bool transposed) const {
    launch(MoeWeightGradFp8Sm90{.plan = plan_,
                                .rows = bytes(source, "gathered rows"),
                                .columns = bytes(t.columns, "columns"),
                                .column_scales = scales(t.block_scales, "column scales"),
                                .grad = flat_out(grad, "weight gradient"),
                                .transposed = transposed},
           &CudaKernels::moe_weight_grad_fp8_sm90);
  }

  at::Tensor gradient_of_x(const Tiles& dH) const {
    const at::Tensor rows = empty({plan_.rows, width_});
    launch(MoeRowsGradFp8Sm90{.plan = plan_,
                              .grad_h = bytes(dH.rows, "grad_hidden"),
                              .grad_h_scales = scales(dH.row_scales, "grad_hidden scales"),
                              .w1t = bytes(kept_.w1t, "w1t"),
                              .w1_scales = scales(kept_.w1_scales, "w1 scales"),
                              .grad_rows = mut_view(rows, "grad_x rows")},
           &CudaKernels::moe_rows_grad_fp8_sm90);
    return summed(rows);
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

Fp8Forward fp8_forward_sm90(const FfnCall& call, bool keep, Fp8Weights* weights) {
  return Fp8ForwardPass(call, keep, weights).run();
}

std::array<at::Tensor, 4> fp8_backward_sm90(const Fp8Backward& call) {
  return Fp8BackwardPass(call).run();
}

}  // namespace troupe
