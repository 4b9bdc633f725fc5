// Tensors to the loops of moe_ffn_cpu.h. A CPU multiplies bf16 and f16 hundreds of times slower
// than f32 (at 0.3 to 1.4 GFLOP/s against 180): such operands are widened, and H is rounded where
// the contract rounds it.
#include <algorithm>

#include "troupe/ops/moe_ffn/ffn_backend.h"
#include "troupe/ops/moe_ffn/moe_ffn_cpu.h"
#include "troupe/ops/support/cpu_memory.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

// A call's operands, dense and in the type that is computed in.
struct Operands {
  explicit Operands(const FfnCall& call) : type(wide_type(call.x)) {
    x = dense(call.x);
    weights = dense(call.weights);
    w1 = dense(call.experts.w1);
    w2 = dense(call.experts.w2);
    if (call.experts.b1.has_value()) b1 = dense(*call.experts.b1);
    if (call.experts.b2.has_value()) b2 = dense(*call.experts.b2);
    if (call.experts.up.has_value()) up = dense(*call.experts.up);
  }
  at::Tensor dense(const at::Tensor& t) const { return t.to(type).contiguous(); }

  at::ScalarType type;
  at::Tensor x, weights, w1, w2;
  std::optional<at::Tensor> b1, b2, up;
};

template <class T>
FfnProblem<T> problem(const FfnCall& call, const Operands& in) {
  return {.tokens = call.tokens(),
          .choices = call.weights.size(1),
          .experts = call.num_experts(),
          .width = call.width(),
          .hidden = call.hidden(),
          .kind = call.kind,
          .gated = call.gated,
          .stored = dtype_of_tensor(call.x, "moe_ffn: x"),
          .x = ptr<const T>(in.x, "moe_ffn: x"),
          .weights = ptr<const T>(in.weights, "moe_ffn: weights"),
          .w1 = ptr<const T>(in.w1, "moe_ffn: w1"),
          .b1 = ptr_or_null<const T>(in.b1, "moe_ffn: b1"),
          .w2 = ptr<const T>(in.w2, "moe_ffn: w2"),
          .b2 = ptr_or_null<const T>(in.b2, "moe_ffn: b2"),
          .up = ptr_or_null<const T>(in.up, "moe_ffn: up"),
          .up_columns = call.layout.up_columns,
          .down_columns = call.layout.down_columns,
          .interleaved = call.layout.interleaved,
          .expert_offset = ptr<const int32_t>(call.plan.expert_offset, "moe_ffn: expert_offset"),
          .counts = ptr<const int64_t>(call.plan.counts, "moe_ffn: counts"),
          .row_src = ptr<const int32_t>(call.plan.row_src, "moe_ffn: row_src"),
          .row_slot = ptr<const int32_t>(call.plan.row_slot, "moe_ffn: row_slot"),
          .slot_row = ptr<const int32_t>(call.plan.slot_row, "moe_ffn: slot_row")};
}

template <class F>
void dispatch_compute(at::ScalarType type, F&& f) {
  if (type == at::kDouble) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

template <class T>
T* data_or_null(const at::Tensor& t) {
  return t.defined() ? t.data_ptr<T>() : nullptr;
}

template <class T>
FfnGradients<T> pointers(const FfnGradTensors& out) {
  return {.weights = data_or_null<T>(out[FfnInput::kScores]),
          .w1 = data_or_null<T>(out[FfnInput::kW1]),
          .b1 = data_or_null<T>(out[FfnInput::kB1]),
          .w2 = data_or_null<T>(out[FfnInput::kW2]),
          .b2 = data_or_null<T>(out[FfnInput::kB2]),
          .up = data_or_null<T>(out[FfnInput::kUp])};
}

// While the rows of an expert are in cache, more is made of them than a call asks for: up makes Y,
// and hidden_grad the rows of dX and, unless they come later, the weights' gradients.
class CpuFfn : public FfnBackend {
  using In = FfnInput;

 public:
  explicit CpuFfn(const FfnCall& call) : call_(call), in_(call) {}

  FfnUp up(bool hidden_only) const override {
    FfnUp out{.hidden = rows_of(call_.hidden_columns())};
    if (!hidden_only) out.rows = rows_of(call_.width());
    dispatch_compute(in_.type, [&]<class T>() {
      moe_ffn_forward_cpu(problem<T>(call_, in_), out.hidden.data_ptr<T>(),
                          data_or_null<T>(out.rows));
    });
    out.hidden = out.hidden.to(call_.x.scalar_type());
    return out;
  }

  at::Tensor down(const FfnUp& up) const override {
    return summed(up.rows).to(call_.x.scalar_type());
  }

  FfnBetween hidden_grad(const FfnHiddenGrad& of) const override {
    const at::Tensor kept = in_.dense(of.hidden);
    FfnNeeds now = of.needs;
    if (of.weights_later) std::fill(now.begin() + In::kFirstWeight, now.end(), false);
    FfnBetween out{.grads = {},
                   .grad_out = in_.dense(of.grad_out),
                   .grad_hidden = of.overwrite ? kept : rows_of(call_.hidden_columns()),
                   .act = rows_of(call_.hidden())};
    if (of.needs[In::kX]) out.grad_rows = rows_of(call_.width());
    out.grads = empty_gradients(now);  // they live longest: behind what is freed before them
    dispatch_compute(in_.type, [&]<class T>() {
      const auto run = of.weights_later ? moe_ffn_rows_backward_cpu<T> : moe_ffn_backward_cpu<T>;
      run(problem<T>(call_, in_), kept.data_ptr<T>(), out.grad_out.data_ptr<T>(),
          {out.grad_hidden.data_ptr<T>(), out.act.data_ptr<T>(), data_or_null<T>(out.grad_rows)},
          pointers<T>(out.grads));
    });
    return out;
  }

  FfnGradTensors rows_grad(const FfnNeeds& needs, FfnBetween& between) const override {
    FfnGradTensors out;
    if (needs[In::kX]) out[In::kX] = summed(between.grad_rows);
    return out;
  }

  FfnGradTensors weight_grad(const FfnNeeds& needs, FfnBetween& between) const override {
    FfnGradTensors out = empty_gradients(needs);
    dispatch_compute(in_.type, [&]<class T>() {
      moe_ffn_weights_backward_cpu<T>(
          problem<T>(call_, in_), between.grad_out.data_ptr<T>(),
          {between.grad_hidden.data_ptr<T>(), between.act.data_ptr<T>(), nullptr},
          pointers<T>(out));
    });
    return out;
  }

  std::vector<FfnStep> order() const override { return {FfnStep::kRows, FfnStep::kWeights}; }

 private:
  at::Tensor rows_of(int64_t columns) const {
    return empty_large({call_.rows(), columns}, in_.x.options());
  }

  at::Tensor summed(const at::Tensor& rows) const {
    const at::Tensor out = empty_large({call_.tokens(), call_.width()}, in_.x.options());
    dispatch_compute(in_.type, [&]<class T>() {
      sum_rows_cpu(problem<T>(call_, in_), rows.data_ptr<T>(), out.data_ptr<T>());
    });
    return out;
  }

  // For the wanted ones but x's, which is a sum of rows.
  FfnGradTensors empty_gradients(const FfnNeeds& needs) const {
    const at::Tensor none;
    const FfnGradTensors like = {none,
                                 in_.weights,
                                 in_.w1,
                                 in_.b1.value_or(none),
                                 in_.w2,
                                 in_.b2.value_or(none),
                                 in_.up.value_or(none)};
    FfnGradTensors out;
    for (size_t i = 0; i < out.size(); ++i) {
      if (needs[i] && like[i].defined()) out[i] = empty_large(like[i].sizes(), in_.x.options());
    }
    return out;
  }

  const FfnCall& call_;
  Operands in_;
};

}  // namespace

std::unique_ptr<FfnBackend> cpu_ffn(const FfnCall& call) {
  return std::make_unique<CpuFfn>(call);
}

}  // namespace troupe
