// Experts whose products of 8-bit operands are passes of their own, on the kernels of x's type or on
// tensor cores in 8 bits: the formulas of moe_ffn_fp8.h.
#include "troupe/ops/moe_ffn/moe_ffn_fp8_passes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>

#include <optional>
#include <utility>
#include <vector>

#include "troupe/ops/activation.h"
#include "troupe/ops/combine.h"
#include "troupe/ops/grouped_gemm.h"
#include "troupe/ops/moe_ffn/fp8_emulated.h"
#include "troupe/ops/moe_ffn/fp8_largest.h"
#include "troupe/ops/moe_ffn/fp8_packed_sm90.h"
#include "troupe/ops/permute.h"
#include "troupe/ops/support/define.h"

namespace troupe {
namespace {

const Fp8Tiles kRow{};

// The rows of tokens in 8 bits, as products over routed rows take them. `largest`: of the tensor
// where all share a scale.
struct EightBitRows {
  EightBitRows(const at::Tensor& x, const Plan& plan,
               const std::optional<at::Tensor>& largest = std::nullopt)
      : q(quantize_fp8(x, kRow, std::nullopt, largest)), plan_(plan), type_(x.scalar_type()) {}
  at::Tensor rows() const { return permute(dequantize_fp8(q, kRow, type_), plan_); }
  at::Tensor unscaled_rows() const { return permute(q.bytes.to(type_), plan_); }
  at::Tensor row_scales() const {  // [R]; of a row without a token: some token's
    return at::index_select(q.scales.view({-1}), 0, plan_.row_src.clamp_min(0));
  }

  Fp8Matrix q;

 private:
  const Plan& plan_;
  at::ScalarType type_;
};

class Fp8PassesFfn : public FfnBackend {
  using In = FfnInput;

 public:
  Fp8PassesFfn(FfnCall call, FfnOptions options, Fp8Options fp8, const Fp8Passes& passes)
      : call_(std::move(call)),
        options_(std::move(options)),
        fp8_(std::move(fp8)),
        bytes_(passes.bytes),
        counts_(passes.counts) {}

  FfnUp up(bool hidden_only) const override {
    FfnUp out{.hidden = of_tokens(call_.x, Fp8Weights::kIn, WeightOrder::kOutIn)};
    if (!hidden_only) out.act = activated(out.hidden, scores());
    return out;
  }

  at::Tensor down(const FfnUp& up) const override {
    return combine(of_rows(up.act, Fp8Weights::kOut, WeightOrder::kOutIn), plan());
  }

  FfnBetween hidden_grad(const FfnHiddenGrad& of) const override {
    static const auto act_backward = raw_op<std::tuple<at::Tensor, at::Tensor>(
        const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
        const std::optional<at::Tensor>&, std::string, std::optional<double>, double)>(
        "troupe::activation_backward");
    FfnBetween out{.grad_out = of.grad_out.contiguous(), .hidden = of.hidden};
    const at::Tensor grad_act = of_tokens(out.grad_out, Fp8Weights::kOut, WeightOrder::kInOut);
    std::tie(out.grad_hidden, out.grad_scores) =
        act_backward(grad_act, of.hidden, scores(), plan().expert_offset, options_.activation,
                     options_.clamp, options_.offset);
    return out;
  }

  FfnGradTensors rows_grad(const FfnNeeds& needs, FfnBetween& between) const override {
    FfnGradTensors out;
    if (needs[In::kX]) {
      out[In::kX] =
          combine(of_rows(between.grad_hidden, Fp8Weights::kIn, WeightOrder::kInOut), plan());
    }
    if (needs[In::kScores]) {
      const at::Tensor row = plan().slot_row.reshape({-1});
      out[In::kScores] = at::index_select(between.grad_scores, 0, row.clamp_min(0))
                             .masked_fill(row.lt(0), 0)
                             .view_symint(call_.weights.sym_sizes());
    }
    return out;
  }

  FfnGradTensors weight_grad(const FfnNeeds& needs, FfnBetween& between) const override {
    FfnGradTensors out;
    if (needs[In::kW1]) {
      out[In::kW1] = product_over_rows(call_.x, between.grad_hidden, /*tokens_first=*/false);
    }
    if (needs[In::kW2]) {
      const at::Tensor act = activated(between.hidden, scores());
      out[In::kW2] = product_over_rows(between.grad_out, act, /*tokens_first=*/true);
    }
    return out;
  }

  std::vector<FfnStep> order() const override { return {FfnStep::kRows, FfnStep::kWeights}; }

 private:
  const Plan& plan() const { return call_.plan; }
  const at::Tensor& weight(Fp8Weights::Which which) const {
    return which == Fp8Weights::kIn ? call_.experts.w1 : call_.experts.w2;
  }
  at::Tensor emulated(Fp8Weights::Which which) const {
    const int64_t part_rows = which == Fp8Weights::kIn ? call_.hidden() : call_.experts.w2.size(1);
    return weight_emulated(fp8_, which, weight(which), part_rows);
  }
  // tile(rows) times a weight.
  at::Tensor of_rows(const at::Tensor& rows, Fp8Weights::Which which, WeightOrder order) const {
    return product(rows, shared_largest(rows, use(operand(which, order))), which, order);
  }
  // The same of the rows of tokens.
  at::Tensor of_tokens(const at::Tensor& x, Fp8Weights::Which which, WeightOrder order) const {
    if (fp8_.recipe != Fp8Recipe::kRow) {
      const auto largest = shared_tokens_largest(x, plan(), use(operand(which, order)));
      return product(permute(x, plan()), largest, which, order);
    }
    return grouped_gemm(EightBitRows(x, plan()).rows(), emulated(which), plan().expert_offset,
                        order);
  }
  // block(s rows)^T q(tokens), or with `tokens_first` its transpose; without weight_grad of
  // unrounded ones.
  at::Tensor product_over_rows(const at::Tensor& tokens, const at::Tensor& rows,
                               bool tokens_first) const {
    const auto product = [&](const at::Tensor& of_tokens, const at::Tensor& others) {
      return tokens_first ? grouped_gemm_weight(of_tokens, others, plan().expert_offset)
                          : grouped_gemm_weight(others, of_tokens, plan().expert_offset);
    };
    if (!fp8_.weight_grad) return product(permute(tokens, plan()), rows);
    const bool of_out = tokens_first;  // dO and A; else X and dH
    const Fp8PackedSm90::Largest largest{
        .tokens = shared_tokens_largest(tokens, plan(),
                                        use(of_out ? Fp8Operand::kOutGrad : Fp8Operand::kIn)),
        .rows = shared_largest(rows, use(of_out ? Fp8Operand::kOut : Fp8Operand::kInGrad))};
    if (bytes_) {
      return Fp8PackedSm90(rows, plan(), fp8_).weight_gradient(tokens, rows, largest, tokens_first);
    }
    const EightBitRows q(tokens, plan(), largest.tokens);
    return product(q.unscaled_rows(), blocks(rows, q.row_scales(), largest.rows));
  }
  at::Tensor scores() const {  // [R]
    const at::Tensor slot = plan().row_slot.clamp_min(0);
    return at::index_select(call_.weights.reshape({-1}), 0, slot)
        .masked_fill(plan().row_slot.lt(0), 0);
  }
  at::Tensor activated(const at::Tensor& hidden, const at::Tensor& scores_R) const {
    return activation(hidden,
                      {.kind = options_.activation,
                       .gated = call_.gated,
                       .clamp = options_.clamp,
                       .offset = options_.offset},
                      {.score_R = scores_R, .expert_offset = plan().expert_offset});
  }

  at::Tensor product(const at::Tensor& rows, const std::optional<at::Tensor>& largest,
                     Fp8Weights::Which which, WeightOrder order) const {
    if (bytes_) {
      return Fp8PackedSm90(rows, plan(), fp8_).product(rows, largest, which, weight(which), order);
    }
    return grouped_gemm(tile_emulated(rows, largest), emulated(which), plan().expert_offset, order);
  }
  Fp8Use use(Fp8Operand operand) const { return {fp8_, operand, counts_}; }
  static Fp8Operand operand(Fp8Weights::Which which, WeightOrder order) {
    return order == WeightOrder::kOutIn ? input_of(which) : gradient_of(which);
  }
  // Operand of a weight gradient: rows times the factor, in blocks of one expert's rows and of
  // gates or ups alone.
  at::Tensor blocks(const at::Tensor& rows, const at::Tensor& factor_R,
                    const std::optional<at::Tensor>& largest) const {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : rows.split(call_.hidden(), 1)) {
      parts.push_back(block_emulated(part, factor_R, plan().expert_offset, largest));
    }
    return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
  }

  FfnCall call_;
  FfnOptions options_;
  Fp8Options fp8_;
  bool bytes_, counts_;
};

}  // namespace

std::unique_ptr<FfnBackend> fp8_passes_ffn(const FfnCall& call, const FfnOptions& options,
                                           const Fp8Options& fp8, const Fp8Passes& passes) {
  return std::make_unique<Fp8PassesFfn>(call, options, fp8, passes);
}

}  // namespace troupe
