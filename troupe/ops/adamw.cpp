#include "troupe/ops/adamw.h"

#include "troupe/kernels/adamw/adamw.h"
#include "troupe/ops/define.h"
#include "troupe/ops/run.h"
#include "troupe/ops/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;
using Options = c10::ArrayRef<double>;  // [lr, beta1, beta2, eps, weight_decay]

void check_like(const at::Tensor& x, const at::Tensor& param, const char* name) {
  TROUPE_CHECK(x.sizes() == param.sizes(), name, "must have sizes", param.sizes(), "; it has",
               x.sizes());
  check_same_device(x, param, name);
}

// state = [param, m, v] or [param, m, v, copy], or [value, m, v, remainder], where that is int16
bool in_halves(at::TensorList state) {
  return state.size() == 4 && state[3].scalar_type() == at::kShort;
}

void adamw_meta(at::TensorList state, const at::Tensor& grad, const Optional& grad_scale,
                int64_t /*step*/, Options options) {
  TROUPE_CHECK(state.size() == 3 || state.size() == 4,
               "adamw_: state must be [param, m, v], [param, m, v, copy] or [value, m, v, "
               "remainder]; it has",
               state.size());
  TROUPE_CHECK(options.size() == 5,
               "adamw_: options must be [lr, beta1, beta2, eps, weight_decay]; it has",
               options.size());
  for (const at::Tensor& x : state) check_like(x, state[0], "adamw_: m, v, copy, remainder");
  check_like(grad, state[0], "adamw_: grad");
  if (!grad_scale.has_value()) return;
  TROUPE_CHECK(grad_scale->numel() == 1, "adamw_: grad_scale must be one number; it is",
               grad_scale->sizes());
  check_same_device(*grad_scale, state[0], "adamw_: grad_scale");
}

void check_contiguous(const at::Tensor& x, const char* name) {
  TROUPE_CHECK(x.is_contiguous(), name, "must be contiguous; its sizes are", x.sizes(),
               "and its strides", x.strides());
}

// All elements in one row, of the tensor itself.
MutRef flat(const at::Tensor& x, const char* name) {
  check_contiguous(x, name);
  const int64_t n = x.numel();
  return {x.mutable_data_ptr(), dtype_of_tensor(x, name), 1, n, n};
}

Mat<uint16_t> flat_halves(const at::Tensor& x) {
  check_contiguous(x, "adamw_: remainder");
  return {static_cast<uint16_t*>(x.mutable_data_ptr()), 1, x.numel(), x.numel()};
}

void adamw_device(at::TensorList state, const at::Tensor& grad, const Optional& grad_scale,
                  int64_t step, Options options) {
  adamw_meta(state, grad, grad_scale, step, options);
  const at::Tensor g = grad.contiguous();
  const bool halves = in_halves(state);
  const MutRef param = flat(state[0], "adamw_: param");
  AdamW args{
      .param = halves ? MutRef{} : param,
      .grad = {g.const_data_ptr(), dtype_of_tensor(g, "adamw_: grad"), 1, g.numel(), g.numel()},
      .m = flat(state[1], "adamw_: m"),
      .v = flat(state[2], "adamw_: v"),
      .step = step,
      .lr = options[0],
      .copy = halves ? param : MutRef{},
      .remainder = halves ? flat_halves(state[3]) : Mat<uint16_t>{},
      .grad_scale = ptr_or_null<const float>(grad_scale, "adamw_: grad_scale"),
      .beta1 = options[1],
      .beta2 = options[2],
      .eps = options[3],
      .weight_decay = options[4]};
  if (state.size() == 4 && !halves) args.copy = flat(state[3], "adamw_: copy");
  run(g.device(), args, adamw_cpu, &CudaKernels::adamw);
}

}  // namespace

void adamw_(const AdamWTensors& s, const at::Tensor& grad, const Optional& grad_scale, int64_t step,
            const AdamWOptions& o) {
  static const auto op = raw_op<decltype(adamw_device)>("troupe::adamw_");
  std::vector<at::Tensor> state = {s.param, s.m, s.v};
  TROUPE_CHECK(!s.copy.has_value() || !s.remainder.has_value(),
               "adamw_: copy is given, and remainder: the parameter is the copy then");
  TROUPE_CHECK(!s.remainder.has_value() || s.remainder->scalar_type() == at::kShort,
               "adamw_: remainder must be int16; it is", s.remainder->scalar_type());
  if (s.copy.has_value()) state.push_back(*s.copy);
  if (s.remainder.has_value()) state.push_back(*s.remainder);
  const double options[] = {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay};
  op(state, grad, grad_scale, step, options);
}

void define_adamw(torch::Library& m) {
  define(m,
         "adamw_(Tensor(a!)[] state, Tensor grad, Tensor? grad_scale, int step, float[] options) "
         "-> ()",
         adamw_device, adamw_meta);
}

}  // namespace troupe
