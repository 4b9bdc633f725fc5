#include "troupe/ops/adamw.h"

#include "troupe/kernels/adamw/adamw.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;

constexpr int64_t kConstants = sizeof(AdamWStep<float>) / sizeof(float);

void check_like(const at::Tensor& x, const at::Tensor& param, const char* name) {
  TROUPE_CHECK(x.sym_sizes() == param.sym_sizes(), name, "must have sizes", param.sym_sizes(),
               "; it has", x.sym_sizes());
  check_same_device(x, param, name);
}

// state = [param, m, v], [param, m, v, copy] or, where the last is int16, [value, m, v, remainder];
// where m is uint8 two scales follow.
struct State {
  explicit State(at::TensorList all)
      : coded(all.size() > 1 && all[1].scalar_type() == at::kByte),
        size(all.size() - (coded ? 2 : 0)),
        halves(size == 4 && all[3].scalar_type() == at::kShort) {}
  bool coded;
  size_t size;  // without scales
  bool halves;
};

struct AdamWArgs {
  at::TensorList state;  // of State
  const at::Tensor& grad;
  const Optional& grad_scale;
  int64_t step;
  double lr, beta1, beta2, eps, weight_decay;
  const Optional& constants;

  static constexpr const char *kName = "adamw_", *kResults = "()";
  static auto visit(auto& a, auto&& f) {
    return f(arg("state", a.state, Written{}), arg("grad", a.grad), arg("grad_scale", a.grad_scale),
             arg("step", a.step), arg("lr", a.lr), arg("beta1", a.beta1, Default{0.9}),
             arg("beta2", a.beta2, Default{0.95}), arg("eps", a.eps, Default{1e-8}),
             arg("weight_decay", a.weight_decay, Default{0.}),
             arg("constants", a.constants, kDefaultNone));
  }
};

void adamw_meta(const AdamWArgs& in) {
  const at::TensorList all = in.state;
  const Optional &grad_scale = in.grad_scale, &constants = in.constants;
  const State state(all);
  TROUPE_CHECK(state.size == 3 || state.size == 4,
               "adamw_: state must be [param, m, v], [param, m, v, copy] or [value, m, v, "
               "remainder], and two scales of uint8 moments; it has",
               all.size());
  for (size_t i = 0; i < state.size; ++i) {
    check_like(all[i], all[0], "adamw_: m, v, copy, remainder");
  }
  for (size_t i = state.size; i < all.size(); ++i) {
    check_same_device(all[i], all[0], "adamw_: m_scale, v_scale");
  }
  check_like(in.grad, all[0], "adamw_: grad");
  if (constants.has_value()) {
    check_sizes(*constants, {kConstants}, "adamw_: constants");
    check_dtype(*constants, at::kFloat, "adamw_: constants");
    check_same_device(*constants, all[0], "adamw_: constants");
  }
  if (!grad_scale.has_value()) return;
  TROUPE_CHECK(grad_scale->sym_numel() == 1, "adamw_: grad_scale must be one number; it is",
               grad_scale->sym_sizes());
  check_same_device(*grad_scale, all[0], "adamw_: grad_scale");
}

void check_contiguous(const at::Tensor& x, const char* name) {
  TROUPE_CHECK(x.is_contiguous(), name, "must be contiguous; its sizes are", x.sym_sizes(),
               "and its strides", x.sym_strides());
}

// All elements in one row, of the tensor itself.
MutRef flat(const at::Tensor& x, const char* name) {
  check_contiguous(x, name);
  const int64_t n = x.numel();
  return {x.mutable_data_ptr(), dtype_of_tensor(x, name), 1, n, n};
}

// The same of a type that is no number's.
template <class T>
Mat<T> flat_of(const at::Tensor& x, at::ScalarType type, const char* name) {
  check_contiguous(x, name);
  TROUPE_CHECK(x.scalar_type() == type, name, "must be", type, "; it is", x.scalar_type());
  return {static_cast<T*>(x.mutable_data_ptr()), 1, x.numel(), x.numel()};
}

MomentCodes codes_of(const at::Tensor& codes, const at::Tensor& scale) {
  return {flat_of<uint8_t>(codes, at::kByte, "adamw_: m, v"),
          flat_of<float>(scale, at::kFloat, "adamw_: m_scale, v_scale")};
}

void adamw_device(const AdamWArgs& in) {
  adamw_meta(in);
  const at::TensorList all = in.state;
  const State state(all);
  const at::Tensor g = in.grad.contiguous();
  AdamW args{
      .param = {},
      .grad = {g.const_data_ptr(), dtype_of_tensor(g, "adamw_: grad"), 1, g.numel(), g.numel()},
      .m = {},
      .v = {},
      .step = in.step,
      .lr = in.lr,
      .grad_scale = ptr_or_null<const float>(in.grad_scale, "adamw_: grad_scale"),
      .beta1 = in.beta1,
      .beta2 = in.beta2,
      .eps = in.eps,
      .weight_decay = in.weight_decay,
      .constants = reinterpret_cast<const AdamWStep<float>*>(
          ptr_or_null<const float>(in.constants, "adamw_: constants"))};
  (state.halves ? args.copy : args.param) = flat(all[0], "adamw_: param");
  if (state.halves) {
    args.remainder = flat_of<uint16_t>(all[3], at::kShort, "adamw_: remainder");
  } else if (state.size == 4) {
    args.copy = flat(all[3], "adamw_: copy");
  }
  if (state.coded) {
    args.m8 = codes_of(all[1], all[state.size]);
    args.v8 = codes_of(all[2], all[state.size + 1]);
  } else {
    args.m = flat(all[1], "adamw_: m");
    args.v = flat(all[2], "adamw_: v");
  }
  run(g.device(), args, adamw_cpu, &CudaKernels::adamw);
}

void run_op(const AdamWTensors& s, const at::Tensor& grad, const Optional& grad_scale, int64_t step,
            const AdamWOptions& o, const Optional& constants) {
  static const auto op = raw_op<decltype(adamw_device)>();
  std::vector<at::Tensor> state = {s.param, s.m, s.v};
  TROUPE_CHECK(!s.copy.has_value() || !s.remainder.has_value(),
               "adamw_: copy is given, and remainder: the parameter is the copy then");
  TROUPE_CHECK(!s.remainder.has_value() || s.remainder->scalar_type() == at::kShort,
               "adamw_: remainder must be int16; it is", s.remainder->scalar_type());
  if (s.copy.has_value()) state.push_back(*s.copy);
  if (s.remainder.has_value()) state.push_back(*s.remainder);
  const bool coded = s.m.scalar_type() == at::kByte;
  TROUPE_CHECK(s.m_scale.has_value() == coded && s.v_scale.has_value() == coded,
               "adamw_: m_scale and v_scale are of moments in uint8 alone; these are",
               s.m.scalar_type());
  if (coded) state.insert(state.end(), {*s.m_scale, *s.v_scale});
  op({state, grad, grad_scale, step, o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, constants});
}

}  // namespace

std::vector<float> adamw_constants(int64_t step, const AdamWOptions& o) {
  TROUPE_CHECK(step > 0, "adamw_: step", step);
  const AdamW args{.param = {},
                   .grad = {},
                   .m = {},
                   .v = {},
                   .step = step,
                   .lr = o.lr,
                   .beta1 = o.beta1,
                   .beta2 = o.beta2,
                   .eps = o.eps,
                   .weight_decay = o.weight_decay};
  const auto s = rounded<float>(adamw_step(args));
  return {s.lr, s.beta1, s.rest1, s.beta2, s.rest2, s.unbias1, s.unbias2, s.eps, s.weight_decay};
}

void adamw_(const AdamWTensors& s, const at::Tensor& grad, const Optional& grad_scale, int64_t step,
            const AdamWOptions& o) {
  run_op(s, grad, grad_scale, step, o, {});
}

void adamw_(const AdamWTensors& s, const at::Tensor& grad, const Optional& grad_scale,
            const at::Tensor& constants) {
  run_op(s, grad, grad_scale, 1, {}, constants);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<adamw_device, adamw_meta>(m);
}

}  // namespace troupe
