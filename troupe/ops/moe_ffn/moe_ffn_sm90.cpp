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

class Sm90Ffn : public FfnBackend {
  using In = FfnInput;

 public:
  explicit Sm90Ffn(const FfnCall& call)
      : call_(call),
        x_(call.x.contiguous()),
        weights_(call.weights.contiguous()),
        w1_(call.experts.w1.contiguous()),
        w2_(call.experts.w2.contiguous()),
        plan_(plan_ref(call.plan, "moe_ffn")) {}

  // One kernel writes H and A: A is there too where nobody asks for it.
  FfnUp up(bool) const override {
    FfnUp out{.hidden = rows_of(call_.hidden_columns()), .act = rows_of(call_.hidden())};
    launch(MoeUpSm90{.plan = plan_,
                     .x = view(x_, "moe_ffn: x"),
                     .w1 = flat_view(w1_, "moe_ffn: w1"),
                     .score = score(),
                     .h = mut_view(out.hidden, "hidden"),
                     .a = mut_view(out.act, "act")},
           &CudaKernels::moe_up_sm90);
    return out;
  }

  at::Tensor down(const FfnUp& up) const override {
    const at::Tensor y = rows_of(call_.width());
    launch(MoeDownSm90{.plan = plan_,
                       .a = view(up.act, "act"),
                       .w2 = flat_view(w2_, "moe_ffn: w2"),
                       .y = mut_view(y, "y")},
           &CudaKernels::moe_down_sm90);
    return summed(y);
  }

  FfnBetween hidden_grad(const FfnHiddenGrad& of) const override {
    FfnBetween out{.grad_out = of.grad_out.contiguous(),
                   .grad_hidden = rows_of(call_.hidden_columns()),
                   .act = rows_of(call_.hidden())};
    out.grads[In::kScores] = at::empty(weights_.sizes(), weights_.options());
    hidden_gradient(out, of.hidden);
    if (of.overwrite) give_back(of.hidden);
    return out;
  }

  FfnGradTensors rows_grad(const FfnNeeds& needs, FfnBetween& between) const override {
    FfnGradTensors out;
    if (needs[In::kX]) out[In::kX] = gradient_of_x(between.grad_hidden);
    return out;
  }

  FfnGradTensors weight_grad(const FfnNeeds& needs, FfnBetween& between) const override {
    FfnGradTensors out;
    if (needs[In::kW2]) out[In::kW2] = gradient_of_w2(between.grad_out, between.act);
    if (needs[In::kW1]) out[In::kW1] = gradient_of_w1(between.grad_hidden);
    return out;
  }

  std::vector<FfnStep> order() const override {
    return {FfnStep::kDown, FfnStep::kRows, FfnStep::kUp};
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

  void hidden_gradient(const FfnBetween& out, const at::Tensor& hidden) const {
    MoeHiddenGradSm90 args{.plan = plan_,
                           .grad_out = view(out.grad_out, "moe_ffn: grad_out"),
                           .w2 = flat_view(w2_, "moe_ffn: w2"),
                           .h = view(hidden, "hidden"),
                           .score = score(),
                           .grad_h = mut_view(out.grad_hidden, "grad_hidden"),
                           .a = mut_view(out.act, "act"),
                           .grad_score = ptr<float>(out.grads[In::kScores], "grad_weights")};
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

GpuKind gpu_of(const c10::Device& device) {
  return device.is_cuda() ? gpu_kind(device.index()) : GpuKind{};
}

std::string sm90_fault(const Sm90Form& f, int64_t multiple) {
  constexpr int kHopper = 90;
  if (f.gpu.capability == 0) return "the device is cpu";
  if (f.gpu.capability != kHopper) {
    return "the GPU's compute capability is " + std::to_string(f.gpu.capability) + ", not 90";
  }
  if (!f.gpu.sm90_code) return "this build has no code for sm_90a that the driver would take";
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
                     gpu_of(c.x.device())})
      .empty();
}

std::unique_ptr<FfnBackend> sm90_ffn(const FfnCall& call) {
  return std::make_unique<Sm90Ffn>(call);
}

}  // namespace troupe
