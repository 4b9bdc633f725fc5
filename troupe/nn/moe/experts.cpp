#include "troupe/nn/moe/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/nn/moe/lora_ffn.h"
#include "troupe/ops/moe_ffn/dense_plan.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

constexpr const char* kExpertsPlace = "model.moe";

template <class... What>
void require(bool holds, const What&... what) {
  if (!holds) fail(Code::kBadValue, kExpertsPlace, what...);
}

bool bits_known(int64_t bits) {
  return bits == -1 || bits == 4 || bits == 8;
}

}  // namespace

FfnOptions FfnForm::options() const {
  FfnOptions o;
  o.activation = activation;
  o.clamp = clamp.value_or(std::numeric_limits<double>::infinity());
  o.offset = offset;
  return o;
}

Init ExpertsInit::up() const {
  return {.kind = kaiming ? Init::kKaiming : Init::kNormal,
          .std = std,
          .truncate = truncate,
          .same_experts = same_experts};
}

Init ExpertsInit::down(int64_t layers) const {
  Init init = up();
  init.std = down_std.value_or(std / std::sqrt(2.0 * static_cast<double>(layers)));
  return init;
}

void validate(const ExpertsConfig& c, int64_t top_k) {
  const auto known = {"silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"};
  require(std::find(known.begin(), known.end(), c.form.activation) != known.end(),
          "no activation '" + c.form.activation + "'; there are silu, gelu, gelu_tanh, quick_gelu,",
          "relu, relu2");
  require(c.hidden >= 1, "an expert's width hidden is", c.hidden, "; it must be 1 or more");
  require(!c.form.clamp || *c.form.clamp > 0, "clamp must be above 0; it is",
          c.form.clamp.value_or(0));
  require(c.form.gated || c.form.offset == 0, "an offset needs gated experts");
  require(!c.score_on_input || top_k == 1, "score_on_input needs top_k 1; it is", top_k);
  require(c.lora.rank >= 0, "lora.rank is", c.lora.rank);
  require(c.lora.dropout >= 0 && c.lora.dropout < 1, "lora.dropout is", c.lora.dropout,
          "; it must be in [0, 1)");
  const QuantizeConfig& q = c.quantize;
  require(bits_known(q.inputs) && bits_known(q.rematerialize) && bits_known(q.scatter),
          "quantize takes -1, 4 or 8 bits; it is inputs", q.inputs, "rematerialize",
          q.rematerialize, "scatter", q.scatter);
  require(q.rematerialize == -1 || c.recompute != Recompute::kExpert, "quantize.rematerialize is",
          q.rematerialize, "but recompute expert keeps no H; set one of them");
  require((q.inputs == -1 && q.rematerialize == -1) || c.recompute != Recompute::kLayer,
          "quantize changes what experts keep, but recompute layer keeps nothing of theirs");
  if (c.lora.on() || c.low_bit) {
    const std::string what =
        c.lora.on() ? "adapters (lora)" : "weights in few bits (model.lora.frozen)";
    require(c.impl == ExpertsImpl::kGrouped, what, "need impl grouped");
    require(c.recompute != Recompute::kExpert, what,
            "keep H: recompute must be none, act or layer");
    require(q.inputs == -1 && q.rematerialize == -1, what,
            "keep what backward reads as it is: leave quantize out");
  }
  if (c.impl == ExpertsImpl::kGrouped) return;
  require(c.impl != ExpertsImpl::kBlockSparse || c.hidden % kExpertBlock == 0,
          "impl block_sparse needs hidden to be a multiple of", kExpertBlock, "; it is", c.hidden,
          "- impl grouped takes any");
  require(
      c.recompute != Recompute::kExpert,
      "impl loop and block_sparse keep H: recompute must be none, act or layer, or impl grouped");
  require(q.inputs == -1 && q.rematerialize == -1 && q.scatter == -1,
          "quantize needs impl grouped: no other packs what it keeps");
}

Experts::Experts(const ExpertsConfig& c, const ExpertsShape& shape)
    : config_(c), slices_(shape.slices) {
  const int64_t E = shape.experts, D = shape.width, F = c.hidden, G = c.form.gates();
  const int64_t held = shape.held ? static_cast<int64_t>(shape.held->size()) : E;
  const Init down = c.init.down(shape.layers);
  w1 = Param::of_experts({E, G, F, D}, c.init.up(), shape.held).showing({held, G * F, D});
  w2 = Param::of_experts({E, D, F}, down, shape.held);
  if (c.bias) {
    b1 = Param::of_experts({E, G, F}, {.kind = Init::kZero}, shape.held).showing({held, G * F});
    b2 = Param::of_experts({E, D}, {.kind = Init::kZero}, shape.held);
    b1->group = b2->group = Group::kNoDecay;
  }
  if (shape.slices > 1) {
    TROUPE_CHECK(F % shape.slices == 0, "experts' hidden", F, "is not cut evenly over",
                 shape.slices, "ranks");
    TROUPE_CHECK(!c.lora.on() && !c.low_bit, "experts with lora or in few bits cannot be cut by",
                 "their hidden width: use at most as many expert ranks as experts");
    const int64_t columns = F / shape.slices;
    w1.take_box(2, shape.slice * columns, columns, Axis::kExpertTensor);
    w2.take_box(2, shape.slice * columns, columns, Axis::kExpertTensor);
    if (c.bias) {
      // b2 is of the sum of the slices: each adds its part of D, which is added once then.
      const int64_t from = D * shape.slice / shape.slices,
                    to = D * (shape.slice + 1) / shape.slices;
      b1->take_box(2, shape.slice * columns, columns, Axis::kExpertTensor);
      b2->take_box(1, from, to - from, Axis::kExpertTensor);
    }
  }
  w1.keep_in(c.low_bit);
  w2.keep_in(c.low_bit);
  if (c.lora.on()) add_adapters(shape);
}

void Experts::add_adapters(const ExpertsShape& shape) {
  const int64_t E = shape.experts, D = shape.width, r = config_.lora.rank;
  const int64_t F = config_.hidden, G = config_.form.gates(), held = w1.size[0];
  w1.frozen = w2.frozen = true;
  w1_lora_a = Param::of_experts({E, r, D}, lora_a_init(), shape.held);
  w1_lora_b = Param::of_experts({E, G, F, r}, lora_b_init(), shape.held).showing({held, G * F, r});
  w2_lora_a = Param::of_experts({E, r, F}, lora_a_init(), shape.held);
  w2_lora_b = Param::of_experts({E, D, r}, lora_b_init(), shape.held);
}

ExpertWeights Experts::weights() const {
  ExpertWeights w{.w1 = w1.value, .b1 = std::nullopt, .w2 = w2.value, .b2 = std::nullopt};
  if (b1) w.b1 = b1->value;
  if (b2) w.b2 = b2->value;
  if (b2 && slices_ > 1) {
    const int64_t D = w2.size[1], from = b2->offset[1], own = b2->size[1];
    w.b2 = at::constant_pad_nd(b2->value, {from, D - from - own});
  }
  return w;
}

void Experts::compute_in_fp8(const Fp8Options& fp8) {
  const int64_t columns = config_.hidden / slices_;
  TROUPE_CHECK(slices_ == 1 || columns % kExpertBlock == 0, "fp8: each of", slices_,
               "ranks would have", columns, "of an expert's", config_.hidden,
               "columns, which cuts groups of", kExpertBlock, "that share a scale: use at most as",
               "many expert ranks as experts, or experts of a width that is a multiple of",
               slices_ * kExpertBlock);
  fp8_.use(fp8, /*products=*/2);
}

void Experts::keep_rounded_weights(bool keep) {
  fp8_.keep_weights(keep);
}

Context Experts::dropped_rows(const ExpertRows& rows, const Context& context) const {
  if (config_.lora.dropout == 0 || !context.training) return {};
  TROUPE_CHECK(w1.size[0] == w1.global[0], "lora.dropout: this rank has", w1.size[0], "of",
               w1.global[0], "experts and does not know the tokens of the others' rows: use",
               "parallel.expert 1");
  return expert_row_context(context, rows);
}

at::Tensor Experts::frozen_forward(const ExpertRows& rows, const FfnOptions& options,
                                   const Context& context) const {
  TROUPE_CHECK(!fp8_.options(), "fp8: experts with adapters or in few bits stay in bf16");
  FfnMatrices w(w1, w2);
  if (b1) w.b1 = b1->value;
  if (b2) w.b2 = b2->value;
  std::optional<ExpertFactors> lora;
  if (w1_lora_a) {
    lora = ExpertFactors{.a1 = w1_lora_a->value,
                         .b1 = w1_lora_b->value,
                         .a2 = w2_lora_a->value,
                         .b2 = w2_lora_b->value,
                         .scale = WithoutAdapters::scale(config_.lora.scale()),
                         .dropout = config_.lora.dropout,
                         .rows = dropped_rows(rows, context)};
  }
  return lora_experts_ffn(rows, w, lora, options, config_.recompute);
}

ExpertsOutput Experts::forward_in_parts(const ExpertRows& rows, const Context& context) const {
  std::vector<int64_t> sizes;
  for (const ExpertRows::Part& part : rows.parts) sizes.push_back(part.rows);
  const std::vector<at::Tensor> sources = at::split_with_sizes(rows.source_SD, sizes);
  const std::vector<at::Tensor> scores = at::split_with_sizes(rows.scores_SK, sizes);
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < sizes.size(); ++i) {
    out.push_back(forward({.source_SD = sources[i].contiguous(),
                           .scores_SK = scores[i].contiguous(),
                           .plan = rows.parts[i].plan},
                          context)
                      .y_SD);
  }
  return {at::cat(out)};
}

ExpertsOutput Experts::forward(const ExpertRows& given, const Context& context) const {
  if (!given.parts.empty()) return forward_in_parts(given, context);
  ExpertRows rows = given;
  if (config_.score_on_input) {  // X5: F(p x), then weight 1
    rows.source_SD = (given.source_SD * given.scores_SK).to(given.source_SD.scalar_type());
    rows.scores_SK = at::ones_like(given.scores_SK).detach();
  }
  FfnOptions options = config_.form.options();
  options.keep_hidden = config_.recompute != Recompute::kExpert;
  options.input_bits = config_.quantize.inputs;
  options.hidden_bits = config_.quantize.rematerialize;
  options.weights_order = rows.beside_grads;
  if (w1_lora_a || w1.low_bit) return {frozen_forward(rows, options, context)};
  const ExpertWeights w = weights();
  if (const auto& fp8 = fp8_.options()) {
    return {moe_ffn_fp8(rows.source_SD, rows.scores_SK, rows.plan, w, options, *fp8)};
  }
  switch (config_.impl) {
    case ExpertsImpl::kLoop: return {loop_ffn(rows, w, options, config_.recompute)};
    case ExpertsImpl::kBlockSparse: return {block_sparse_ffn(rows, w, options, config_.recompute)};
    case ExpertsImpl::kGrouped: break;
  }
  if (options.input_bits >= 0 || options.hidden_bits >= 0) {
    options.saturated = at::zeros({1}, rows.plan.counts.options());
  }
  return {moe_ffn(rows.source_SD, rows.scores_SK, rows.plan, w, options), options.saturated};
}

at::Tensor dense_ffn(const at::Tensor& x_TD, const ExpertWeights& weights,
                     const FfnOptions& options, const std::optional<Fp8Options>& fp8) {
  const auto wide = wide_type(x_TD);
  const at::Tensor ones =
      at::ones({x_TD.size(0), 1}, x_TD.options().dtype(wide).requires_grad(false));
  if (fp8) return moe_ffn_fp8(x_TD, ones, dense_plan(x_TD), weights, options, *fp8);
  return moe_ffn(x_TD, ones, dense_plan(x_TD), weights, options);
}

void require_fp8_sides(const Param& w1, const Param& w2, const char* what) {
  const int64_t width = w2.size[0], hidden = w2.size[1];
  TROUPE_CHECK(w1.size[1] == hidden && w1.size[2] == width, what, "has w1 of", w1.size[1], "x",
               w1.size[2], "and w2 of", width, "x", hidden);
  TROUPE_CHECK(width % kExpertBlock == 0 && hidden % kExpertBlock == 0, "fp8: this rank would have",
               what, "of width", width, "and hidden width", hidden, "which cuts groups of",
               kExpertBlock, "that share a scale: use fewer ranks of parallel.tensor");
}

}  // namespace troupe
