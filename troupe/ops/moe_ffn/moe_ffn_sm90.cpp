#include "troupe/ops/moe_ffn/moe_ffn_sm90.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "troupe/kernels/combine/combine.h"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/ops/support/give_back.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/trial_kernels.h"

namespace troupe {
namespace {

class Sm90Ffn {
 public:
  explicit Sm90Ffn(const FfnCall& call)
      : call_(call),
        x_(call.x.contiguous()),
        weights_(call.weights.contiguous()),
        w1_(call.experts.w1.contiguous()),
        w2_(call.experts.w2.contiguous()),
        plan_(plan_ref(call.plan, "moe_ffn")) {}

  FfnForward forward(bool hidden_only) const {
    const at::Tensor h = rows_of(call_.hidden_columns()), a = rows_of(call_.hidden());
    launch(MoeUpSm90{.plan = plan_,
                     .x = view(x_, "moe_ffn: x"),
                     .w1 = flat_view(w1_, "moe_ffn: w1"),
                     .score = score(),
                     .h = mut_view(h, "hidden"),
                     .a = mut_view(a, "act")},
           &CudaKernels::moe_up_sm90);
    if (hidden_only) return {.out = {}, .hidden = h};
    const at::Tensor y = rows_of(call_.width());
    launch(MoeDownSm90{.plan = plan_,
                       .a = view(a, "act"),
                       .w2 = flat_view(w2_, "moe_ffn: w2"),
                       .y = mut_view(y, "y")},
           &CudaKernels::moe_down_sm90);
    return {.out = summed(y), .hidden = h};
  }

  FfnGradTensors backward(const at::Tensor& grad_out, const at::Tensor& hidden,
                          const FfnNeeds& needs, bool overwrite) const {
    const at::Tensor dO = grad_out.contiguous(), dH = rows_of(call_.hidden_columns());
    at::Tensor a = rows_of(call_.hidden());
    FfnGradTensors out;
    out[1] = at::empty(weights_.sizes(), weights_.options());
    hidden_gradient(dO, hidden, dH, a, out[1]);
    if (overwrite) give_back(hidden);
    // What needs A comes first, and A goes before the rows of dX come.
    if (needs[4]) out[4] = gradient_of_w2(dO, a);
    a = at::Tensor();
    if (needs[0]) out[0] = gradient_of_x(dH);
    if (needs[2]) out[2] = gradient_of_w1(dH);
    if (!needs[1]) out[1] = at::Tensor();
    return out;
  }

  FfnRowsHalf rows_backward(const at::Tensor& grad_out, const at::Tensor& hidden,
                            const FfnNeeds& needs, bool overwrite) const {
    FfnRowsHalf out{.grads = {},
                    .between = {.grad_hidden = rows_of(call_.hidden_columns()),
                                .act = rows_of(call_.hidden())}};
    const at::Tensor scores = at::empty(weights_.sizes(), weights_.options());
    hidden_gradient(grad_out.contiguous(), hidden, out.between.grad_hidden, out.between.act,
                    scores);
    if (overwrite) give_back(hidden);
    if (needs[0]) out.grads[0] = gradient_of_x(out.between.grad_hidden);
    if (needs[1]) out.grads[1] = scores;
    return out;
  }

  FfnGradTensors weights_backward(const at::Tensor& grad_out, const FfnBetween& between,
                                  const FfnNeeds& needs) const {
    FfnGradTensors out;
    if (needs[4]) out[4] = gradient_of_w2(grad_out.contiguous(), between.act);
    if (needs[2]) out[2] = gradient_of_w1(between.grad_hidden);
    return out;
  }

 private:
  at::Tensor gradient_of_w1(const at::Tensor& dH) const {
    at::Tensor out = at::empty(w1_.sizes(), w1_.options());
    launch_weight_gradient(MoeUpGradSm90{.plan = plan_,
                                         .x = view(x_, "moe_ffn: x"),
                                         .grad_h = view(dH, "grad_hidden"),
                                         .grad_w1 = flat_out(out, "grad_w1")},
                           out, &CudaKernels::moe_up_grad_sm90);
    return out;
  }

  at::Tensor gradient_of_w2(const at::Tensor& dO, const at::Tensor& a) const {
    at::Tensor out = at::empty(w2_.sizes(), w2_.options());
    launch_weight_gradient(MoeDownGradSm90{.plan = plan_,
                                           .grad_out = view(dO, "moe_ffn: grad_out"),
                                           .a = view(a, "act"),
                                           .grad_w2 = flat_out(out, "grad_w2")},
                           out, &CudaKernels::moe_down_grad_sm90);
    return out;
  }

  template <class Args>
  void launch(const Args& args, void (*CudaKernels::*kernel)(const Args&, cudaStream_t)) const {
    run_cuda(x_.device(), args, kernel);
  }

  // `grad`: of all experts, [E, M, N].
  template <class Args>
  void launch_weight_gradient(Args args, const at::Tensor& grad,
                              void (*CudaKernels::*kernel)(const Args&, cudaStream_t)) const {
    if (trial_kernels()) args.segments.rows = choose_weight_segment(grad.size(1), grad.size(2));
    at::Tensor workspace;
    if (workspace_bytes(args) > 0) {
      workspace = at::empty({workspace_bytes(args)}, x_.options().dtype(at::kByte));
      args.segments.workspace = workspace.mutable_data_ptr();
    }
    launch(args, kernel);
  }

  const float* score() const { return ptr<const float>(weights_, "moe_ffn: weights"); }

  at::Tensor rows_of(int64_t columns) const {
    return at::empty({plan_.rows, columns}, x_.options());
  }

  at::Tensor summed(const at::Tensor& rows) const {
    at::Tensor out = at::empty({plan_.tokens, rows.size(1)}, rows.options());
    launch(Combine{.plan = plan_, .y = view(rows, "rows"), .out = mut_view(out, "out")},
           &CudaKernels::combine);
    return out;
  }

  void hidden_gradient(const at::Tensor& dO, const at::Tensor& hidden, const at::Tensor& dH,
                       const at::Tensor& a, const at::Tensor& grad_weights) const {
    MoeHiddenGradSm90 args{.plan = plan_,
                           .grad_out = view(dO, "moe_ffn: grad_out"),
                           .w2 = flat_view(w2_, "moe_ffn: w2"),
                           .h = view(hidden, "hidden"),
                           .score = score(),
                           .grad_h = mut_view(dH, "grad_hidden"),
                           .a = mut_view(a, "act"),
                           .grad_score = ptr<float>(grad_weights, "grad_weights")};
    const at::Tensor workspace = at::empty({workspace_bytes(args)}, x_.options().dtype(at::kByte));
    args.workspace = workspace.mutable_data_ptr();
    launch(args, &CudaKernels::moe_hidden_grad_sm90);
  }

  at::Tensor gradient_of_x(const at::Tensor& dH) const {
    const at::Tensor rows = rows_of(call_.width());
    launch(MoeRowsGradSm90{.plan = plan_,
                           .grad_h = view(dH, "grad_hidden"),
                           .w1 = flat_view(w1_, "moe_ffn: w1"),
                           .grad_rows = mut_view(rows, "grad_x rows")},
           &CudaKernels::moe_rows_grad_sm90);
    return summed(rows);
  }

  const FfnCall& call_;
  at::Tensor x_, weights_, w1_, w2_;
  PlanRef plan_;
};

}  // namespace

int capability_of(const c10::Device& device) {
  return device.is_cuda() ? cuda_plugin().compute_capability(device.index()) : 0;
}

std::string sm90_fault(const Sm90Form& f, int64_t multiple) {
  constexpr int kHopper = 90;
  if (f.capability == 0) return "the device is cpu";
  if (f.capability != kHopper) {
    return "the GPU's compute capability is " + std::to_string(f.capability) + ", not 90";
  }
  if (f.type != at::kBFloat16) return "the products are not in bf16";
  if (!f.plain) return "experts are not plain SwiGLU without biases, clamp and offset";
  if (f.width % multiple != 0 || f.hidden % multiple != 0) {
    return "widths " + std::to_string(f.width) + " and " + std::to_string(f.hidden) +
           " are not both multiples of " + std::to_string(multiple);
  }
  if (f.experts > kMaxExpertsSm90) {
    return std::to_string(f.experts) + " experts are more than " + std::to_string(kMaxExpertsSm90);
  }
  return {};
}

std::vector<std::string> sm90_kernel_lines(const Sm90Form& form, int64_t rows, bool trial) {
  std::vector<std::string> out;
  for (const Sm90Kernel& kernel : sm90_kernels(
           {.width = form.width, .hidden = form.hidden, .experts = form.experts, .rows = rows},
           trial)) {
    out.push_back(std::string(kernel.name) + ": " + to_text(kernel));
  }
  return out;
}

bool fits_sm90(const FfnCall& c) {
  const bool plain = c.kind.act == Act::kSilu && std::isinf(c.kind.clamp) && c.kind.offset == 0 &&
                     c.gated && !c.experts.b1.has_value() && !c.experts.b2.has_value();
  return sm90_fault({c.width(), c.hidden(), c.num_experts(), plain, c.x.scalar_type(),
                     capability_of(c.x.device())})
      .empty();
}

FfnForward ffn_forward_sm90(const FfnCall& call, bool hidden_only) {
  return Sm90Ffn(call).forward(hidden_only);
}

FfnGradTensors ffn_backward_sm90(const FfnCall& call, const at::Tensor& grad_out,
                                 const at::Tensor& hidden, const FfnNeeds& needs, bool overwrite) {
  return Sm90Ffn(call).backward(grad_out, hidden, needs, overwrite);
}

FfnRowsHalf ffn_rows_backward_sm90(const FfnCall& call, const at::Tensor& grad_out,
                                   const at::Tensor& hidden, const FfnNeeds& needs,
                                   bool overwrite) {
  return Sm90Ffn(call).rows_backward(grad_out, hidden, needs, overwrite);
}

FfnGradTensors ffn_weights_backward_sm90(const FfnCall& call, const at::Tensor& grad_out,
                                         const FfnBetween& between, const FfnNeeds& needs) {
  return Sm90Ffn(call).weights_backward(grad_out, between, needs);
}

}  // namespace troupe
