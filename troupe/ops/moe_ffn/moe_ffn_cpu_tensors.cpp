// Tensors to the loops of moe_ffn_cpu.h. A CPU multiplies bf16 and f16 hundreds of times slower
// than f32 (at 0.3 to 1.4 GFLOP/s against 180): such operands are widened, and H is rounded where
// the contract rounds it.

#include "troupe/ops/moe_ffn/moe_ffn_cpu.h"
#include "troupe/ops/moe_ffn/moe_ffn_paths.h"
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

// Tensors for the wanted gradients, in the order of gradients.
FfnGradTensors empty_gradients(const Operands& in, const FfnNeeds& needs) {
  const at::Tensor none;
  const FfnGradTensors like = {in.x,
                               in.weights,
                               in.w1,
                               in.b1.value_or(none),
                               in.w2,
                               in.b2.value_or(none),
                               in.up.value_or(none)};
  FfnGradTensors out;
  for (int i = 0; i < kNumFfnGradients; ++i) {
    if (needs[i] && like[i].defined()) out[i] = empty_large(like[i].sizes(), in.x.options());
  }
  return out;
}

template <class T>
FfnGradients<T> pointers(const FfnGradTensors& out) {
  return {data_or_null<T>(out[0]), data_or_null<T>(out[1]), data_or_null<T>(out[2]),
          data_or_null<T>(out[3]), data_or_null<T>(out[4]), data_or_null<T>(out[5]),
          data_or_null<T>(out[6])};
}

}  // namespace

FfnForward ffn_forward_cpu(const FfnCall& call, bool hidden_only) {
  const Operands in(call);
  const auto options = in.x.options();
  FfnForward out{.out = {}, .hidden = empty_large({call.rows(), call.hidden_columns()}, options)};
  at::Tensor rows_RD;
  if (!hidden_only) {
    out.out = empty_large({call.tokens(), call.width()}, options);
    rows_RD = empty_large({call.rows(), call.width()}, options);
  }
  dispatch_compute(in.type, [&]<class T>() {
    moe_ffn_forward_cpu(problem<T>(call, in), out.hidden.data_ptr<T>(), data_or_null<T>(rows_RD),
                        data_or_null<T>(out.out));
  });
  out.hidden = out.hidden.to(call.x.scalar_type());
  if (!hidden_only) out.out = out.out.to(call.x.scalar_type());
  return out;
}

FfnGradTensors ffn_backward_cpu(const FfnCall& call, const at::Tensor& grad_out,
                                const at::Tensor& hidden, const FfnNeeds& needs, bool overwrite) {
  const Operands in(call);
  const at::Tensor grad = in.dense(grad_out), kept = in.dense(hidden);
  const auto options = in.x.options();
  const at::Tensor grad_hidden =
      overwrite ? kept : empty_large({call.rows(), call.hidden_columns()}, options);
  const at::Tensor act = empty_large({call.rows(), call.hidden()}, options);
  const at::Tensor rows_RD =
      needs[0] ? empty_large({call.rows(), call.width()}, options) : at::Tensor();
  FfnGradTensors out = empty_gradients(in, needs);
  dispatch_compute(in.type, [&]<class T>() {
    moe_ffn_backward_cpu<T>(
        problem<T>(call, in), kept.data_ptr<T>(), grad.data_ptr<T>(),
        {grad_hidden.data_ptr<T>(), act.data_ptr<T>(), data_or_null<T>(rows_RD)}, pointers<T>(out));
  });
  return out;
}

FfnRowsHalf ffn_rows_backward_cpu(const FfnCall& call, const at::Tensor& grad_out,
                                  const at::Tensor& hidden, const FfnNeeds& needs, bool overwrite) {
  const Operands in(call);
  const at::Tensor grad = in.dense(grad_out), kept = in.dense(hidden);
  const auto options = in.x.options();
  FfnRowsHalf out{
      .grads = empty_gradients(in, {needs[0], needs[1]}),
      .between = {.grad_hidden =
                      overwrite ? kept : empty_large({call.rows(), call.hidden_columns()}, options),
                  .act = empty_large({call.rows(), call.hidden()}, options)}};
  const at::Tensor rows_RD =
      needs[0] ? empty_large({call.rows(), call.width()}, options) : at::Tensor();
  dispatch_compute(in.type, [&]<class T>() {
    moe_ffn_rows_backward_cpu<T>(problem<T>(call, in), kept.data_ptr<T>(), grad.data_ptr<T>(),
                                 {out.between.grad_hidden.data_ptr<T>(),
                                  out.between.act.data_ptr<T>(), data_or_null<T>(rows_RD)},
                                 pointers<T>(out.grads));
  });
  return out;
}

FfnGradTensors ffn_weights_backward_cpu(const FfnCall& call, const at::Tensor& grad_out,
                                        const FfnBetween& between, const FfnNeeds& needs) {
  const Operands in(call);
  const at::Tensor grad = in.dense(grad_out);
  FfnNeeds weights = needs;
  weights[0] = weights[1] = false;
  FfnGradTensors out = empty_gradients(in, weights);
  dispatch_compute(in.type, [&]<class T>() {
    moe_ffn_weights_backward_cpu<T>(
        problem<T>(call, in), grad.data_ptr<T>(),
        {between.grad_hidden.data_ptr<T>(), between.act.data_ptr<T>(), nullptr}, pointers<T>(out));
  });
  return out;
}

}  // namespace troupe
