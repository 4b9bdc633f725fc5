#include "troupe/ops/rotary.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/rotary/rotary.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;

void check_table(const at::Tensor& table, const at::Tensor& x, const char* name) {
  check_sizes(table, {-1, -1}, name);
  check_dtype(table, wide_type(x), name);
  check_same_device(table, x, name);
}

at::Tensor rotary_meta(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                       const Optional& position, int64_t /*first*/, bool /*interleaved*/) {
  TROUPE_CHECK(x.dim() == 3 || x.dim() == 4,
               "rotary: x must be [T, H, D] or [B, S, H, D]; its sizes are", x.sym_sizes());
  check_table(cos, x, "rotary: cos");
  check_table(sin, x, "rotary: sin");
  check_sizes(sin, {cos.sym_size(0), cos.sym_size(1)}, "rotary: sin");
  if (position.has_value()) {
    TROUPE_CHECK(position->sym_sizes() == x.sym_sizes().slice(0, x.dim() - 2),
                 "rotary: position must have sizes", x.sym_sizes().slice(0, x.dim() - 2),
                 "; it has", position->sym_sizes());
    check_dtype(*position, at::kLong, "rotary: position");
    check_same_device(*position, x, "rotary: position");
  } else {
    TROUPE_CHECK(x.sym_size(-3) <= cos.sym_size(0), "rotary: cos must have a row for each of",
                 x.sym_size(-3), "tokens; it has", cos.sym_size(0));
  }
  return at::empty_symint(x.sym_sizes(), x.options());
}

at::Tensor rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                   const Optional& position, Rotary args) {
  at::Tensor y = rotary_meta(x, cos, sin, position, args.first, false);
  const int64_t columns = x.size(-2) * x.size(-1), tokens = columns == 0 ? 0 : x.numel() / columns;
  if (tokens == 0) return y;
  const at::Tensor rows = rowwise(x.reshape({tokens, columns})), out = y.view({tokens, columns});
  // Without positions the kernel takes row t mod P: the tables are cut to the sequence length.
  const int64_t P = position.has_value() ? cos.size(0) : x.size(-3);
  const at::Tensor c = rowwise(cos.narrow(0, 0, P)), s = rowwise(sin.narrow(0, 0, P));
  const Optional positions = position.has_value() ? Optional(position->contiguous()) : Optional();
  args.x = view(rows, "rotary: x");
  args.y = mut_view(out, "rotary: y");
  args.cos = view(c, "rotary: cos");
  args.sin = view(s, "rotary: sin");
  args.head_dim = x.size(-1);
  args.position = ptr_or_null<const int64_t>(positions, "rotary: position");
  run(x.device(), args, rotary_cpu, &CudaKernels::rotary);
  return y;
}

Rotary args_of(int64_t first, bool interleaved, bool inverse) {
  Rotary args{};
  args.first = first;
  args.form = interleaved ? RotaryForm::kInterleaved : RotaryForm::kHalf;
  args.inverse = inverse;
  return args;
}

at::Tensor rotary_device(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                         const Optional& position, int64_t first, bool interleaved) {
  return rotated(x, cos, sin, position, args_of(first, interleaved, /*inverse=*/false));
}

at::Tensor rotary_backward_device(const at::Tensor& grad_y, const at::Tensor& cos,
                                  const at::Tensor& sin, const Optional& position, int64_t first,
                                  bool interleaved) {
  return rotated(grad_y, cos, sin, position, args_of(first, interleaved, /*inverse=*/true));
}

at::Tensor rotary_op(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                     const Optional& position, int64_t first, bool interleaved) {
  static const auto op = raw_op<decltype(rotary_device)>("troupe::rotary");
  static const auto backward = raw_op<decltype(rotary_backward_device)>("troupe::rotary_backward");
  at::Tensor y = op(x, cos, sin, position, first, interleaved);
  record({.name = "rotary",
          .inputs = {x},
          .outputs = {y},
          .saved = {cos, sin, position.value_or(at::Tensor())},
          .backward = [first, interleaved](const Gradients& g) -> TensorList {
            const Optional p = g.saved[2].defined() ? Optional(g.saved[2]) : Optional();
            return {backward(g.outputs[0], g.saved[0], g.saved[1], p, first, interleaved)};
          }});
  return y;
}

}  // namespace

at::Tensor rotary(const at::Tensor& x, const RotaryTables& tables,
                  const std::optional<at::Tensor>& position, const RotaryOptions& o) {
  return rotary_op(x, tables.cos, tables.sin, position, o.first, o.interleaved);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m,
         "rotary(Tensor x, Tensor cos, Tensor sin, Tensor? position, int first, bool interleaved) "
         "-> Tensor",
         rotary_device, rotary_meta, rotary_op);
  define(m,
         "rotary_backward(Tensor grad_y, Tensor cos, Tensor sin, Tensor? position, int first, "
         "bool interleaved) -> Tensor",
         rotary_backward_device, rotary_meta);
}

}  // namespace troupe
