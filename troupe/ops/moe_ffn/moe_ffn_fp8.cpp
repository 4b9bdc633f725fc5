#include "troupe/ops/moe_ffn/moe_ffn_fp8.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "troupe/ops/moe_ffn/ffn_check.h"
#include "troupe/ops/moe_ffn/ffn_halves.h"
#include "troupe/ops/moe_ffn/moe_ffn_fp8_passes.h"
#include "troupe/ops/moe_ffn/moe_ffn_fp8_sm90.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/saved.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

constexpr const char* kFp8Name = "moe_ffn_fp8";

ExpertWeights experts_of(const at::Tensor& w1, const at::Tensor& w2) {
  return {.w1 = w1, .b1 = std::nullopt, .w2 = w2, .b2 = std::nullopt};
}

// What backward reads of a call whose products are passes, by name.
struct PassesSaved {
  at::Tensor x, scores, w1, w2, hidden;
  Plan plan;
  static void visit(auto& s, auto&& f) {
    f(s.x), f(s.scores), f(s.w1), f(s.w2), f(s.hidden), f(s.plan);
  }
};

// The same of recipe row's joint kernels. x, or x8 with its scales, by Fp8Options::weight_grad.
struct JointSaved {
  at::Tensor x, scores, x8, x8_scales, hidden, w1t, w1_scales, w2t, w2_scales;
  Plan plan;
  static void visit(auto& s, auto&& f) {
    f(s.x), f(s.scores), f(s.x8), f(s.x8_scales), f(s.hidden);
    f(s.w1t), f(s.w1_scales), f(s.w2t), f(s.w2_scales), f(s.plan);
  }
};

// Weights' gradients have the place that `options` gives them, or come with those of x.
void record_fp8(const FfnCall& call, const FfnOptions& options, const at::Tensor& out,
                TensorList saved, FfnHalves::Read read) {
  const at::Tensor none;
  Record r{.name = kFp8Name,
           .inputs = {call.x, call.weights, call.experts.w1, none, call.experts.w2, none, none},
           .outputs = {out},
           .saved = std::move(saved),
           .backward = {}};
  const auto halves = std::make_shared<FfnHalves>(std::move(read));
  if (record_ffn_halves(r, halves, "moe_ffn_fp8_weights", options.weights_order)) return;
  r.backward = [halves](const Gradients& g) { return halves->whole(g); };
  record(std::move(r));
}

bool is_trained(const FfnCall& call) {
  return wants_grad({call.x, call.weights, call.experts.w1, call.experts.w2});
}

void check(const ExpertWeights& e, const FfnOptions& o) {
  TROUPE_CHECK(e.w1.dim() == 3 && e.w2.dim() == 3, "moe_ffn_fp8: w1 and w2 must be [E, N, K]");
  const int64_t D = e.w2.size(1), F = e.w2.size(2);
  TROUPE_CHECK(D >= kFp8Tile && F >= kFp8Tile, "moe_ffn_fp8: width", D, "and hidden width", F,
               "must be at least", kFp8Tile);
  TROUPE_CHECK(!e.b1.has_value() && !e.b2.has_value(), "moe_ffn_fp8: experts have no biases");
  TROUPE_CHECK(!e.up.has_value() && o.layout.plain(),
               "moe_ffn_fp8: w1 must be [E, 2F, D], F gate rows, then F up rows, and w2 [E, D, F]");
  TROUPE_CHECK(o.keep_hidden && o.input_bits < 0 && o.hidden_bits < 0,
               "moe_ffn_fp8: what experts keep for backward cannot be changed");
}

// Products that are passes of their own.
at::Tensor in_passes(const FfnCall& call, const FfnOptions& options, const Fp8Options& fp8,
                     bool bytes) {
  const bool keep = is_trained(call);
  FfnForward f;
  {
    const at::NoGradGuard no_grad;
    f = ffn_forward(*fp8_passes_ffn(call, options, fp8, {.bytes = bytes, .counts = keep}));
  }
  if (!keep) return f.out;
  const PassesSaved saved{call.x,          call.weights, call.experts.w1,
                          call.experts.w2, f.hidden,     call.plan};
  const auto read = [options, fp8, bytes, kind = call.kind,
                     gated = call.gated](const TensorList& t) {
    const auto s = saved_from<PassesSaved>(t);
    const FfnCall again{.x = s.x,
                        .weights = s.scores,
                        .plan = s.plan,
                        .experts = experts_of(s.w1, s.w2),
                        .kind = kind,
                        .gated = gated};
    return FfnSaved{s.hidden, [=] {
                      return fp8_passes_ffn(again, options, fp8, {.bytes = bytes, .counts = true});
                    }};
  };
  record_fp8(call, options, f.out, saved_list(saved), read);
  return f.out;
}

// The joint products of recipe row, on a Hopper GPU.
at::Tensor in_joint_kernels(const FfnCall& call, const FfnOptions& options, const Fp8Options& fp8) {
  const bool keep = is_trained(call), weight_grad = fp8.weight_grad;
  Fp8Operands in;
  FfnForward f;
  {
    const at::NoGradGuard no_grad;
    in = fp8_operands(call, keep, fp8);
    f = ffn_forward(*fp8_sm90_ffn(in, weight_grad));
  }
  if (!keep) return f.out;
  const JointSaved saved{.x = weight_grad ? at::Tensor() : call.x,
                         .scores = call.weights,
                         .x8 = weight_grad ? in.x8.bytes : at::Tensor(),
                         .x8_scales = weight_grad ? in.x8.scales : at::Tensor(),
                         .hidden = f.hidden,
                         .w1t = in.w1.transposed,
                         .w1_scales = in.w1.scales,
                         .w2t = in.w2.transposed,
                         .w2_scales = in.w2.scales,
                         .plan = call.plan};
  record_fp8(call, options, f.out, saved_list(saved), [weight_grad](const TensorList& t) {
    const auto s = saved_from<JointSaved>(t);
    const Fp8Operands kept{.x = s.x,
                           .x8 = {s.x8, s.x8_scales},
                           .w1 = {{}, s.w1t, s.w1_scales},
                           .w2 = {{}, s.w2t, s.w2_scales},
                           .scores = s.scores,
                           .plan = s.plan};
    return FfnSaved{s.hidden, [kept, weight_grad] { return fp8_sm90_ffn(kept, weight_grad); }};
  });
  return f.out;
}

struct MoeFfnFp8Args {
  const at::Tensor& x;
  const at::Tensor& weights;
  const at::Tensor& w1;
  const at::Tensor& w2;
  at::TensorList plan;
  std::string activation;
  std::optional<double> clamp;
  double offset;
  bool weight_grad, emulate;
  std::string recipe;

  static constexpr const char *kName = kFp8Name, *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("x", a.x), arg("weights", a.weights), arg("w1", a.w1), arg("w2", a.w2),
             arg("plan", a.plan), arg("activation", a.activation, kKeywordOnly, Default{"silu"}),
             arg("clamp", a.clamp, kDefaultNone), arg("offset", a.offset, Default{0.}),
             arg("weight_grad", a.weight_grad, Default{true}),
             arg("emulate", a.emulate, Default{false}), arg("recipe", a.recipe, Default{"row"}));
  }
};

at::Tensor moe_ffn_fp8_op(const MoeFfnFp8Args& a) {
  const Plan routed = plan_from(a.plan, kFp8Name);
  const ExpertWeights experts = experts_of(a.w1, a.w2);
  check_ffn(a.x, a.weights, routed, experts);
  FfnOptions options{.activation = a.activation, .offset = a.offset};
  if (a.clamp.has_value()) options.clamp = *a.clamp;
  return moe_ffn_fp8(a.x, a.weights, routed, experts, options,
                     {.weight_grad = a.weight_grad,
                      .emulate = a.emulate,
                      .recipe = fp8_recipe_of(a.recipe, kFp8Name)});
}

}  // namespace

at::Tensor moe_ffn_fp8(const at::Tensor& x_SD, const at::Tensor& weights_TK, const Plan& plan,
                       const ExpertWeights& experts, const FfnOptions& options,
                       const Fp8Options& fp8) {
  check(experts, options);
  const at::Tensor x = rowwise(x_SD);
  const bool gated = experts.w1.size(1) != experts.w2.size(2);
  const ActivationKind kind{.act = act_of_name(options.activation),
                            .clamp = static_cast<float>(options.clamp),
                            .offset = static_cast<float>(options.offset)};
  const FfnCall call{x, weights_TK, plan, experts, kind, gated, {}};
  const bool plain = kind.act == Act::kSilu && std::isinf(kind.clamp) && kind.offset == 0 && gated;
  // By the weights, whose sizes are numbers where x's are symbols.
  const Sm90Form form{experts.w2.size(1), call.hidden(),     call.num_experts(), plain,
                      x.scalar_type(),    gpu_of(x.device())};
  const bool bytes = !fp8.emulate && fp8_sm90_fault(form).empty();
  if (bytes) check_whole_plan(plan, kFp8Name);  // the others' operators check what they read
  if (bytes && fp8.recipe == Fp8Recipe::kRow) return in_joint_kernels(call, options, fp8);
  return in_passes(call, options, fp8, bytes);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define_whole<moe_ffn_fp8_op>(m);
}

}  // namespace troupe
