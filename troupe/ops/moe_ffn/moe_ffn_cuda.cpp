// The CUDA path of ops/moe_ffn/moe_ffn: kernels of the table, chained on one stream. No size visits
// the host. Transient memory is A and Y forward, and dH, A (which takes the place of G) and the
// rows of dX backward; a last backward gives H back before the rows of dX come.
#include <ATen/ops/empty.h>

#include "troupe/kernels/combine/combine.h"
#include "troupe/kernels/group_bias/group_bias.h"
#include "troupe/kernels/grouped_gemm/grouped_gemm.h"
#include "troupe/kernels/permute/permute.h"
#include "troupe/kernels/row_scores/row_scores.h"
#include "troupe/ops/moe_ffn/moe_ffn_sm90.h"
#include "troupe/ops/support/give_back.h"
#include "troupe/ops/support/run.h"

namespace troupe {
namespace {

class CudaFfn : public FfnBackend {
  using In = FfnInput;

 public:
  explicit CudaFfn(const FfnCall& call)
      : call_(call),
        x_(rowwise(call.x)),
        weights_(call.weights.contiguous()),
        w1_(call.experts.w1.contiguous()),
        w2_(call.experts.w2.contiguous()),
        plan_(plan_ref(call.plan, "moe_ffn")),
        launcher_(call.x.device()) {
    if (call.experts.b1.has_value()) b1_ = call.experts.b1->contiguous();
    if (call.experts.b2.has_value()) b2_ = call.experts.b2->contiguous();
  }

  FfnUp up(bool hidden_only) const override {
    FfnUp out{.hidden = hidden_rows()};
    if (hidden_only) return out;
    out.act = rows_of(call_.hidden());
    out.scores = scores();
    launcher_(Activation{.h = view(out.hidden, "hidden"),
                         .u = mut_view(out.act, "act"),
                         .score = view(out.scores, "scores"),
                         .expert_offset = plan_.expert_offset,
                         .num_experts = plan_.experts,
                         .kind = call_.kind},
              &CudaKernels::activation);
    return out;
  }

  at::Tensor down(const FfnUp& up) const override {
    const at::Tensor y = rows_of(call_.width());
    GroupedGemm down{.a = view(up.act, "act"),
                     .b = flat_view(w2_, "moe_ffn: w2"),
                     .c = mut_view(y, "y"),
                     .experts = plan_.experts,
                     .expert_offset = plan_.expert_offset};
    if (b2_.defined()) {
      down.bias = view(b2_, "moe_ffn: b2");
      down.bias_scale = ptr<const float>(up.scores, "scores");
    }
    launcher_(down, &CudaKernels::grouped_gemm);
    return summed(y);
  }

  FfnBetween hidden_grad(const FfnHiddenGrad& of) const override {
    const at::Tensor dO = rowwise(of.grad_out), s = scores();
    const at::Tensor act = gradient_of_act(dO), dH = rows_of(call_.hidden_columns());
    const at::Tensor grad_score = at::empty({plan_.rows, 1}, s.options());
    launcher_(ActivationBackward{.h = view(of.hidden, "hidden"),
                                 .grad_u = view(act, "act"),
                                 .grad_h = mut_view(dH, "grad_hidden"),
                                 .score = view(s, "scores"),
                                 .grad_score = mut_view(grad_score, "grad_scores"),
                                 .u = mut_view(act, "act"),
                                 .expert_offset = plan_.expert_offset,
                                 .num_experts = plan_.experts,
                                 .kind = call_.kind},
              &CudaKernels::activation_backward);
    if (of.overwrite) give_back(of.hidden);
    FfnBetween out{.grad_out = dO, .grad_hidden = dH, .act = act, .grad_scores = grad_score};
    if (b2_.defined() && (of.needs[In::kScores] || of.needs[In::kB2])) {
      out.grads[In::kB2] = through_b2(dO, s, grad_score);
    }
    return out;
  }

  FfnGradTensors rows_grad(const FfnNeeds& needs, FfnBetween& between) const override {
    FfnGradTensors out;
    if (needs[In::kX]) out[In::kX] = gradient_of_x(between.grad_hidden);
    if (needs[In::kScores]) {
      out[In::kScores] =
          reordered(between.grad_scores, plan_.slot_row, weights_.numel()).view(weights_.sizes());
    }
    return out;
  }

  FfnGradTensors weight_grad(const FfnNeeds& needs, FfnBetween& between) const override {
    const at::Tensor &dO = between.grad_out, &dH = between.grad_hidden;
    FfnGradTensors out;
    if (needs[In::kW1]) out[In::kW1] = weight_gradient(w1_, dH, false, x_, true);
    if (needs[In::kB1]) out[In::kB1] = bias_gradient(b1_, dH);
    if (needs[In::kW2]) out[In::kW2] = weight_gradient(w2_, dO, true, between.act, false);
    return out;
  }

  std::vector<FfnStep> order() const override { return {FfnStep::kRows, FfnStep::kWeights}; }

 private:
  // Runs one kernel of the table on PyTorch's current stream.
  struct Launcher {
    explicit Launcher(c10::Device on) : device(on) {}
    template <class Args>
    void operator()(const Args& args,
                    void (*CudaKernels::*kernel)(const Args&, cudaStream_t)) const {
      run_cuda(device, args, kernel);
    }
    c10::Device device;
  };

  at::Tensor rows_of(int64_t columns) const {
    return at::empty({plan_.rows, columns}, x_.options());
  }

  at::Tensor hidden_rows() const {
    at::Tensor h = rows_of(call_.hidden_columns());
    GroupedGemm up{.a = view(x_, "moe_ffn: x"),
                   .b = flat_view(w1_, "moe_ffn: w1"),
                   .c = mut_view(h, "moe_ffn: hidden"),
                   .experts = plan_.experts,
                   .expert_offset = plan_.expert_offset,
                   .row_src = plan_.row_src};
    if (b1_.defined()) up.bias = view(b1_, "moe_ffn: b1");
    launcher_(up, &CudaKernels::grouped_gemm);
    return h;
  }

  at::Tensor scores() const {
    return reordered(weights_.view({-1, 1}), plan_.row_slot, plan_.rows);
  }

  at::Tensor reordered(const at::Tensor& column, const int32_t* index, int64_t n) const {
    at::Tensor out = at::empty({n, 1}, column.options());
    launcher_(
        RowScores{.in = view(column, "scores"), .index = index, .out = mut_view(out, "scores")},
        &CudaKernels::row_scores);
    return out;
  }

  at::Tensor summed(const at::Tensor& rows) const {
    at::Tensor out = at::empty({plan_.tokens, rows.size(1)}, rows.options());
    launcher_(Combine{.plan = plan_, .y = view(rows, "rows"), .out = mut_view(out, "out")},
              &CudaKernels::combine);
    return out;
  }

  at::Tensor gradient_of_act(const at::Tensor& dO) const {
    at::Tensor g = rows_of(call_.hidden());
    launcher_(GroupedGemm{.a = view(dO, "moe_ffn: grad_out"),
                          .b = flat_view(w2_, "moe_ffn: w2"),
                          .c = mut_view(g, "grad_act"),
                          .experts = plan_.experts,
                          .expert_offset = plan_.expert_offset,
                          .row_src = plan_.row_src,
                          .transpose_b = false},
              &CudaKernels::grouped_gemm);
    return g;
  }

  at::Tensor gradient_of_x(const at::Tensor& dH) const {
    const at::Tensor rows = rows_of(call_.width());
    launcher_(GroupedGemm{.a = view(dH, "grad_hidden"),
                          .b = flat_view(w1_, "moe_ffn: w1"),
                          .c = mut_view(rows, "grad_x rows"),
                          .experts = plan_.experts,
                          .expert_offset = plan_.expert_offset,
                          .transpose_b = false},
              &CudaKernels::grouped_gemm);
    return summed(rows);
  }

  at::Tensor weight_gradient(const at::Tensor& w, const at::Tensor& a, bool gather_a,
                             const at::Tensor& b, bool gather_b) const {
    at::Tensor out = at::empty(w.sizes(), w.options());
    launcher_(GroupedGemmWeight{.a = view(a, "weight gradient: a"),
                                .b = view(b, "weight gradient: b"),
                                .c = flat_out(out, "weight gradient"),
                                .experts = plan_.experts,
                                .expert_offset = plan_.expert_offset,
                                .row_src = plan_.row_src,
                                .gather_a = gather_a,
                                .gather_b = gather_b,
                                .finite_pads = true},  // their score is 0
              &CudaKernels::grouped_gemm_weight);
    return out;
  }

  at::Tensor bias_gradient(const at::Tensor& bias, const at::Tensor& rows) const {
    at::Tensor out = at::empty(bias.sizes(), bias.options().dtype(at::kFloat));
    launcher_(GroupBiasBackward{.grad_y = view(rows, "rows"),
                                .grad_bias = mut_view(out, "grad_bias"),
                                .expert_offset = plan_.expert_offset},
              &CudaKernels::group_bias_backward);
    return out;
  }

  // b2 is rare: its two gradients may cost a gathered copy of dO.
  at::Tensor through_b2(const at::Tensor& dO, const at::Tensor& s,
                        const at::Tensor& grad_score) const {
    const at::Tensor rows = rows_of(call_.width());
    launcher_(Permute{.plan = plan_, .x = view(dO, "grad_out"), .out = mut_view(rows, "rows")},
              &CudaKernels::permute);
    at::Tensor out = at::empty(b2_.sizes(), b2_.options().dtype(at::kFloat));
    launcher_(GroupBiasBackward{.grad_y = view(rows, "rows"),
                                .grad_bias = mut_view(out, "grad_b2"),
                                .expert_offset = plan_.expert_offset,
                                .score = view(s, "scores"),
                                .bias = view(b2_, "b2"),
                                .grad_score = mut_view(grad_score, "grad_scores"),
                                .add_to_grad_score = true},
              &CudaKernels::group_bias_backward);
    return out;
  }

  const FfnCall& call_;
  at::Tensor x_, weights_, w1_, w2_, b1_, b2_;
  PlanRef plan_;
  Launcher launcher_;
};

}  // namespace

std::unique_ptr<FfnBackend> cuda_ffn(const FfnCall& call) {
  if (fits_sm90(call)) return sm90_ffn(call);
  return std::make_unique<CudaFfn>(call);
}

}  // namespace troupe
