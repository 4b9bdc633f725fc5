#include "troupe/ops/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "troupe/kernels/cross_entropy/cross_entropy.h"
#include "troupe/ops/support/arg_check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;

struct CrossEntropyArgs {
  const at::Tensor& logits;  // [T, V]
  const at::Tensor& target;  // [T]
  const Optional& weight;    // [T]
  double z_loss;
  int64_t ignore;

  static constexpr const char *kName = "cross_entropy", *kResults = "(Tensor, Tensor)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("logits", a.logits, Dims{"TV"}), arg("target", a.target, Dims{"T"}, kLongType),
             arg("weight", a.weight, Dims{"T"}, kWideType, kDefaultNone),
             arg("z_loss", a.z_loss, Default{0.}), arg("ignore", a.ignore, Default{-100}));
  }
};

struct CrossEntropyBackwardArgs {
  const at::Tensor& grad_loss;  // [T]
  const at::Tensor& logits;     // [T, V]
  const at::Tensor& target;     // [T]
  const at::Tensor& lse;        // [T]
  const Optional& weight;       // [T]
  double z_loss;
  int64_t ignore;

  static constexpr const char *kName = "cross_entropy_backward", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("grad_loss", a.grad_loss, Dims{"T"}), arg("logits", a.logits, Dims{"TV"}, kLead),
             arg("target", a.target, Dims{"T"}, kLongType), arg("lse", a.lse, Dims{"T"}),
             arg("weight", a.weight, Dims{"T"}, kWideType), arg("z_loss", a.z_loss),
             arg("ignore", a.ignore));
  }
};

Two cross_entropy_meta(const CrossEntropyArgs& a) {
  const DimSizes sizes = check_args(a);
  const auto wide = a.logits.options().dtype(wide_type(a.logits));
  return {at::empty_symint({sizes['T']}, wide), at::empty_symint({sizes['T']}, wide)};
}

Two cross_entropy_device(const CrossEntropyArgs& a) {
  Two out = cross_entropy_meta(a);
  const at::Tensor x = rowwise(a.logits), words = a.target.contiguous();
  const at::Tensor loss = std::get<0>(out).unsqueeze(1), lse = std::get<1>(out).unsqueeze(1);
  const CrossEntropy args{.logits = view(x, "cross_entropy: logits"),
                          .target = ptr<const int64_t>(words, "cross_entropy: target"),
                          .loss = mut_view(loss, "cross_entropy: loss"),
                          .lse = mut_view(lse, "cross_entropy: lse"),
                          .weight = column(a.weight, "cross_entropy: weight"),
                          .z_loss = static_cast<float>(a.z_loss),
                          .ignore = a.ignore};
  run(x.device(), args, cross_entropy_cpu, &CudaKernels::cross_entropy);
  return out;
}

at::Tensor cross_entropy_backward_meta(const CrossEntropyBackwardArgs& a) {
  check_args(a);
  return at::empty_symint(a.logits.sym_sizes(), a.logits.options());
}

// grad_logits may be the logits themselves.
void gradient_into(const at::Tensor& grad_logits, const CrossEntropyBackwardArgs& a) {
  const at::Tensor x = rowwise(a.logits), words = a.target.contiguous();
  const at::Tensor lse = a.lse.unsqueeze(1);
  const at::Tensor& grad_loss = a.grad_loss;
  const bool one = grad_loss.numel() > 1 && grad_loss.stride(0) == 0;  // As sum() hands back.
  const at::Tensor grad = grad_loss.contiguous().unsqueeze(1);
  MatRef grad_view = view(grad, "cross_entropy_backward: grad_loss");
  if (one) grad_view.ld = 0;
  const CrossEntropyBackward args{
      .logits = view(x, "cross_entropy_backward: logits"),
      .target = ptr<const int64_t>(words, "cross_entropy_backward: target"),
      .lse = view(lse, "cross_entropy_backward: lse"),
      .grad_loss = grad_view,
      .grad_logits = mut_view(grad_logits, "cross_entropy_backward: grad_logits"),
      .weight = column(a.weight, "cross_entropy_backward: weight"),
      .z_loss = static_cast<float>(a.z_loss),
      .ignore = a.ignore};
  run(x.device(), args, cross_entropy_backward_cpu, &CudaKernels::cross_entropy_backward);
}

at::Tensor cross_entropy_backward_device(const CrossEntropyBackwardArgs& a) {
  at::Tensor grad = cross_entropy_backward_meta(a);
  gradient_into(grad, a);
  return grad;
}

Two cross_entropy_op(const CrossEntropyArgs& a) {
  static const auto op = raw_op<decltype(cross_entropy_device)>();
  static const auto backward = raw_op<decltype(cross_entropy_backward_device)>();
  Two out = op(a);
  const auto& [loss, lse] = out;
  record({.name = "cross_entropy",
          .inputs = {a.logits},
          .outputs = {loss},
          .saved = {a.logits, a.target, lse, a.weight.value_or(at::Tensor())},
          .backward = [z_loss = a.z_loss, ignore = a.ignore](const Gradients& g) -> TensorList {
            return {backward({g.outputs[0], g.saved[0], g.saved[1], g.saved[2], given(g.saved[3]),
                              z_loss, ignore})};
          }});
  return out;
}

// The sum of the losses, lse, and the gradients of that sum: empty where `wanted` is false. Beside a
// teacher `loss` is the loss without it, and `kl` the sum of divergences.
struct Head {
  at::Tensor loss, lse, grad_x, grad_weight, kl = {};
};

struct Wanted {
  bool x, weight;
};

// sum += a b, or sum = a b where there is none yet. A GPU's product adds to the wide sum itself; a
// product of its own, rounded, would be written, read and added.
void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
  const bool widens = a.is_cuda() && a.scalar_type() != type;
  if (!sum.defined()) {
    sum = widens ? at::mm(a, b, type) : at::mm(a, b).to(type);
  } else if (widens) {
    at::addmm_out(sum, sum, a, b, type);
  } else {
    sum.add_(at::mm(a, b));
  }
}

struct HeadInput {
  const at::Tensor& x;       // [T, D]
  const at::Tensor& weight;  // [V, D]
  const at::Tensor& target;  // [T]
};

// Tokens of the head: their logits, which make room for the gradient of their loss.
struct Chunk {
  at::Tensor logits, target, lse;
  Optional weight;

  Chunk rows(int64_t from, int64_t n) const {
    return {logits.narrow(0, from, n), target.narrow(0, from, n), lse.narrow(0, from, n),
            weight ? Optional(weight->narrow(0, from, n)) : Optional()};
  }
  void to_gradient(const CrossEntropyOptions& o) const {
    const at::Tensor one = at::ones({1}, lse.options()).expand({logits.size(0)});
    gradient_into(logits, {one, logits, target, lse, weight, o.z_loss, o.ignore});
  }
};

// KL(p || q) of each token, and the gradient of temperature^2 KL for its logits.
struct Divergence {
  at::Tensor kl_T, grad_TV;
};

Divergence divergence(const at::Tensor& logits, const at::Tensor& teacher, const SoftTargets& soft,
                      at::ScalarType wide) {
  check_sizes(teacher, {logits.size(0), logits.size(1)}, "taught_cross_entropy: teacher");
  at::Tensor shown = teacher.to(wide);
  if (soft.top > 0 && soft.top < logits.size(1)) {
    const at::Tensor best = std::get<0>(at::topk(shown, soft.top, 1));
    shown = shown.masked_fill(shown < best.narrow(1, soft.top - 1, 1),
                              -std::numeric_limits<double>::infinity());
  }
  const at::Tensor log_p = at::log_softmax(shown / soft.temperature, 1), p = log_p.exp();
  const at::Tensor log_q = at::log_softmax(logits.to(wide) / soft.temperature, 1);
  // A word of probability 0 adds nothing, whatever its logarithm.
  const at::Tensor kl = (p * (log_p - log_q)).masked_fill_(p == 0, 0).sum(1);
  return {kl, (log_q.exp() - p) * soft.temperature};
}

// The weighted sum of the divergences of a chunk's tokens, of which token 0 is token `begin` of all.
// With `graph` the chunk's logits become the gradient of the whole loss.
at::Tensor teach(const Chunk& chunk, int64_t begin, const SoftTargets& soft,
                 const CrossEntropyOptions& o, bool graph) {
  constexpr int64_t kParts = 16;  // each with some six tensors of wide numbers
  const int64_t T = chunk.logits.size(0), part = (T + kParts - 1) / kParts;
  const at::ScalarType wide = chunk.lse.scalar_type();
  at::Tensor sum = at::zeros({}, chunk.lse.options());
  for (int64_t from = 0; from < T; from += part) {
    const Chunk own = chunk.rows(from, std::min(part, T - from));
    const at::Tensor teacher = soft.logits(begin + from, own.logits.size(0));
    const Divergence d = divergence(own.logits, teacher, soft, wide);
    const at::Tensor counted = (own.target != o.ignore).to(wide);
    const at::Tensor factor = own.weight ? counted * own.weight->to(wide) : counted;
    sum += (d.kl_T * factor).sum();
    if (!graph) continue;
    own.to_gradient(o);
    if (soft.weight == 0) continue;
    const at::Tensor taught = d.grad_TV * (factor * soft.weight).unsqueeze(1);
    own.logits.copy_(own.logits.to(wide) * (1 - soft.weight) + taught);
  }
  return sum;
}

// `soft`: null without a teacher.
Head head_chunks(const HeadInput& in, const CrossEntropyOptions& o, const SoftTargets* soft,
                 int64_t chunk, Wanted wanted) {
  const auto& [x, weight, target] = in;
  const int64_t T = x.size(0);
  const auto wide = x.options().dtype(wide_type(x));
  const bool graph = wanted.x || wanted.weight;
  Head head{.loss = at::zeros({}, wide),
            .lse = at::empty({T}, wide),
            .grad_x = wanted.x ? at::empty_like(x, at::MemoryFormat::Contiguous) : at::Tensor(),
            .grad_weight = wanted.weight && T == 0 ? at::zeros(weight.sizes(), wide) : at::Tensor(),
            .kl = soft != nullptr ? at::zeros({}, wide) : at::Tensor()};
  for (int64_t begin = 0; begin < T; begin += chunk) {
    const int64_t n = std::min(chunk, T - begin);
    const at::Tensor rows = x.narrow(0, begin, n), words = target.narrow(0, begin, n);
    const Optional w =
        o.weight_T.has_value() ? Optional(o.weight_T->narrow(0, begin, n)) : Optional();
    const at::Tensor logits = at::matmul(rows, weight.t());
    const auto [loss, lse] = cross_entropy_device({logits, words, w, o.z_loss, o.ignore});
    head.loss += loss.sum();
    head.lse.narrow(0, begin, n).copy_(lse);
    const Chunk own{logits, words, lse, w};
    if (soft != nullptr) {
      head.kl += teach(own, begin, *soft, o, graph);
    } else if (graph) {
      own.to_gradient(o);
    }
    if (wanted.x) {
      at::Tensor to = head.grad_x.narrow(0, begin, n);
      at::mm_out(to, logits, weight);
    }
    if (wanted.weight) add_product(head.grad_weight, logits.t(), rows, wide_type(x));
  }
  return head;
}

// Checks the arguments of a whole head, then computes it, without a graph.
Head checked_head(const HeadInput& in, const CrossEntropyOptions& o, const SoftTargets* soft,
                  int64_t chunk) {
  check_sizes(in.x, {-1, -1}, "linear_cross_entropy: x");
  check_sizes(in.weight, {-1, in.x.size(1)}, "linear_cross_entropy: weight");
  check_dtype(in.weight, in.x.scalar_type(), "linear_cross_entropy: weight");
  TROUPE_CHECK(chunk > 0, "linear_cross_entropy: chunk must be positive; it is", chunk);
  const bool graph = wants_grad({in.x, in.weight});
  const at::NoGradGuard no_grad;
  return head_chunks(in, o, soft, chunk,
                     {graph && in.x.requires_grad(), graph && in.weight.requires_grad()});
}

// Gives `loss` its graph: backward multiplies the gradients that were made with it.
void record_head(const HeadInput& in, const Head& head, const at::Tensor& loss) {
  record({.name = "linear_cross_entropy",
          .inputs = {in.x, in.weight},
          .outputs = {loss},
          .saved = {head.grad_x, head.grad_weight},
          .backward = [type = in.weight.scalar_type()](const Gradients& g) -> TensorList {
            const auto scaled = [&](at::Tensor x) {
              const at::Tensor scale = g.outputs[0].to(x.scalar_type());
              return g.last ? x.mul_(scale) : x * scale;
            };
            return {g.needs[0] ? scaled(g.saved[0]) : at::Tensor(),
                    g.needs[1] ? scaled(g.saved[1]).to(type) : at::Tensor()};
          }});
}

}  // namespace

std::pair<at::Tensor, at::Tensor> cross_entropy(const at::Tensor& logits_TV,
                                                const at::Tensor& target_T,
                                                const CrossEntropyOptions& o) {
  const auto [loss, lse] = cross_entropy_op({logits_TV, target_T, o.weight_T, o.z_loss, o.ignore});
  return {loss, lse};
}

std::pair<at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& x_TD,
                                                       const at::Tensor& weight_VD,
                                                       const at::Tensor& target_T,
                                                       const CrossEntropyOptions& o,
                                                       int64_t chunk) {
  const HeadInput in{x_TD, weight_VD, target_T};
  const Head head = checked_head(in, o, nullptr, chunk);
  record_head(in, head, head.loss);
  return {head.loss, head.lse};
}

TaughtLoss taught_cross_entropy(const at::Tensor& x_TD, const at::Tensor& weight_VD,
                                const at::Tensor& target_T, const CrossEntropyOptions& o,
                                const SoftTargets& soft, int64_t chunk) {
  TROUPE_CHECK(soft.weight >= 0 && soft.weight <= 1 && soft.temperature > 0 && soft.top >= 0,
               "taught_cross_entropy: weight", soft.weight, "temperature", soft.temperature, "top",
               soft.top);
  const HeadInput in{x_TD, weight_VD, target_T};
  const Head head = checked_head(in, o, &soft, chunk);
  const double square = soft.temperature * soft.temperature;
  const at::Tensor loss = soft.weight == 0
                              ? head.loss.clone()
                              : head.loss * (1 - soft.weight) + head.kl * (soft.weight * square);
  record_head(in, head, loss);
  return {loss, head.loss, head.kl};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<cross_entropy_device, cross_entropy_meta, cross_entropy_op>(m);
  define<cross_entropy_backward_device, cross_entropy_backward_meta>(m);
}

}  // namespace troupe
