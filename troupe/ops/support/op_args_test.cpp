#include "troupe/ops/support/op_args.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <vector>

#include "troupe/ops/support/arg_check.h"
#include "troupe/ops/support/define.h"
#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

// Every kind of argument, defaults, a group, a written tensor, and what has a name only.
struct ProbeNumbers {
  int64_t seed;
  double rate;

  static auto visit(auto& a, auto&& f) {
    return f(arg("seed", a.seed, Default{-3}), arg("rate", a.rate, Default{1e-8}));
  }
};

struct ProbeArgs {
  const at::Tensor& x;
  const std::optional<at::Tensor>& bias;
  at::TensorList parts;
  c10::SymInt rows;
  ProbeNumbers numbers;
  std::optional<double> clamp;
  std::string kind;
  bool on;
  std::array<bool, 3> needs;
  at::ScalarType type;

  static constexpr const char *kName = "op_args_probe", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("x", a.x, Written{}), arg("bias", a.bias), arg("parts", a.parts),
             arg("rows", a.rows), group(a.numbers),
             arg("clamp", a.clamp, kKeywordOnly, kDefaultNone),
             arg("kind", a.kind, Default{"silu"}), arg("on", a.on, Default{true}),
             arg("needs", a.needs), arg("type", a.type));
  }
};

// The arguments of the latest call, which outlive it.
struct ProbeSeen {
  at::Tensor x;
  std::optional<at::Tensor> bias;
  std::vector<at::Tensor> parts;
  c10::SymInt rows;
  ProbeNumbers numbers;
  std::optional<double> clamp;
  std::string kind;
  bool on;
  std::array<bool, 3> needs;
  at::ScalarType type;
  const char* by;
};
std::optional<ProbeSeen> latest_probe;

at::Tensor probe_seen(const ProbeArgs& a, const char* by) {
  latest_probe = ProbeSeen{a.x,    a.bias, a.parts.vec(), a.rows, a.numbers, a.clamp,
                           a.kind, a.on,   a.needs,       a.type, by};
  return at::empty_symint(a.x.sym_sizes(), a.x.options());
}
at::Tensor probe_device(const ProbeArgs& a) {
  return probe_seen(a, "device");
}
at::Tensor probe_meta(const ProbeArgs& a) {
  return probe_seen(a, "meta");
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<probe_device, probe_meta>(m);
}

struct OpProbe {
  explicit OpProbe(const at::Device& device = at::kCPU)
      : x(at::zeros({2, 3}, device)), bias(at::zeros({3}, device)), parts({x, *bias}) {}
  ProbeArgs args() const {
    return {x, bias, parts, 5, {7, 0.25}, 1.5, "relu", false, {true, false, true}, at::kHalf};
  }

  at::Tensor x;
  std::optional<at::Tensor> bias;
  std::vector<at::Tensor> parts;
};

void expect_seen(const OpProbe& probe, const char* by) {
  ASSERT_TRUE(latest_probe.has_value());
  EXPECT_STREQ(latest_probe->by, by);
  EXPECT_TRUE(latest_probe->x.is_same(probe.x));
  ASSERT_TRUE(latest_probe->bias.has_value());
  EXPECT_TRUE(latest_probe->bias->is_same(*probe.bias));
  ASSERT_EQ(latest_probe->parts.size(), 2u);
  EXPECT_TRUE(latest_probe->parts[0].is_same(probe.x) &&
              latest_probe->parts[1].is_same(*probe.bias));
  EXPECT_EQ(latest_probe->rows, 5);
  EXPECT_EQ(latest_probe->numbers.seed, 7);
  EXPECT_EQ(latest_probe->numbers.rate, 0.25);
  EXPECT_EQ(latest_probe->clamp, 1.5);
  EXPECT_EQ(latest_probe->kind, "relu");
  EXPECT_FALSE(latest_probe->on);
  EXPECT_EQ(latest_probe->needs, (std::array<bool, 3>{true, false, true}));
  EXPECT_EQ(latest_probe->type, at::kHalf);
}

TEST(OpArgs, WritesASchema) {
  EXPECT_EQ(
      schema_text<ProbeArgs>(),
      "op_args_probe(Tensor(a!) x, Tensor? bias, Tensor[] parts, SymInt rows, int seed=-3, "
      "float rate=1e-8, *, float? clamp=None, str kind=\"silu\", bool on=True, bool[3] needs, "
      "ScalarType type) -> Tensor");
}

TEST(OpArgs, WritesFloatsAsSchemasDo) {
  for (const auto& [x, text] :
       {std::pair{0., "0."}, std::pair{1., "1."}, std::pair{-100., "-100."},
        std::pair{0.95, "0.95"}, std::pair{1e-8, "1e-8"}, std::pair{2.5e-12, "2.5e-12"}}) {
    EXPECT_EQ(detail::float_text(x), text);
  }
}

TEST(OpArgs, ACallOfAStructArrivesAsThatStruct) {
  const auto op = raw_op<decltype(probe_device)>();
  const OpProbe probe, traced(at::kMeta);
  op(probe.args());
  expect_seen(probe, "device");
  op(traced.args());
  expect_seen(traced, "meta");
}

TEST(OpArgs, ACallFromPythonArrivesAsThatStruct) {
  const OpProbe probe;
  torch::jit::Stack stack = {
      probe.x,  probe.bias, probe.parts, 5,     7,
      0.25,     1.5,        "relu",      false, c10::List<bool>({true, false, true}),
      at::kHalf};
  c10::Dispatcher::singleton().findSchemaOrThrow("troupe::op_args_probe", "").callBoxed(&stack);
  expect_seen(probe, "device");
  ASSERT_EQ(stack.size(), 1u);
  EXPECT_EQ(stack[0].toTensor().sizes(), probe.x.sizes());
}

// Two that a compiler cannot tell apart.
struct SwappedNumbers {
  int64_t first, second;
  static constexpr const char *kName = "swapped", *kResults = "()";
  static auto visit(auto& a, auto&& f) { return f(arg("second", a.second), arg("first", a.first)); }
};
struct SwappedTensors {
  const at::Tensor& first;
  double between;
  const at::Tensor& second;
  static constexpr const char *kName = "swapped", *kResults = "()";
  static auto visit(auto& a, auto&& f) {
    return f(arg("second", a.second), arg("between", a.between), arg("first", a.first));
  }
};

TEST(OpArgs, AnotherOrderThanTheMembersIsFound) {
  EXPECT_TRUE(in_member_order<ProbeArgs>());
  EXPECT_FALSE(in_member_order<SwappedNumbers>());
  EXPECT_FALSE(in_member_order<SwappedTensors>());
  TROUPE_EXPECT_REFUSAL(detail::checked_schema<SwappedNumbers>(), "swapped: visit() must name");
}

// What torch.ops.troupe has had since its operators were written by hand: names, order, types and
// defaults that Python programs and exported graphs use.
constexpr const char* kSchemas[] = {
    "activation(Tensor h, Tensor? score, Tensor? expert_offset, str kind, bool gated, "
    "float? clamp=None, float offset=0.) -> Tensor",
    "activation_backward(Tensor grad_u, Tensor h, Tensor? score, Tensor? expert_offset, str "
    "kind, float? clamp=None, float offset=0.) -> (Tensor, Tensor)",
    "adamw_(Tensor(a!)[] state, Tensor grad, Tensor? grad_scale, int step, float lr, float "
    "beta1=0.9, float beta2=0.95, float eps=1e-8, float weight_decay=0., Tensor? "
    "constants=None) -> ()",
    "attention(Tensor q, Tensor k, Tensor v, float scale) -> (Tensor out, Tensor lse)",
    "attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor "
    "lse, float scale) -> (Tensor, Tensor, Tensor)",
    "block_sdd(Tensor a, Tensor b, Tensor[] indices, SymInt rows, SymInt cols, int block, "
    "bool transposed) -> Tensor",
    "block_dsd(Tensor values, Tensor[] indices, SymInt rows, SymInt cols, int block, bool "
    "transposed, Tensor b) -> Tensor",
    "block_dds(Tensor a, Tensor values, Tensor[] indices, SymInt rows, SymInt cols, int "
    "block, bool transposed) -> Tensor",
    "drop_over_capacity(Tensor ids, Tensor weights, Tensor? valid, int experts, float "
    "factor, int minimum=1, bool renormalize=False, str policy=\"probs\") -> (Tensor ids, "
    "Tensor weights, Tensor dropped)",
    "drop_over_capacity_backward(Tensor grad, Tensor ids, Tensor kept_ids, Tensor weights, "
    "int experts, bool renormalize) -> Tensor",
    "cross_entropy(Tensor logits, Tensor target, Tensor? weight=None, float z_loss=0., int "
    "ignore=-100) -> (Tensor, Tensor)",
    "cross_entropy_backward(Tensor grad_loss, Tensor logits, Tensor target, Tensor lse, "
    "Tensor? weight, float z_loss, int ignore) -> Tensor",
    "expert_choice(Tensor logits, Tensor? valid, Tensor? given_ids, str score, float rho, "
    "bool normalize=False, float scale=1.) -> (Tensor ids, Tensor weights, Tensor counts, "
    "Tensor lse_squares)",
    "expert_choice_backward(Tensor grad_weights, Tensor grad_lse_squares, Tensor logits, "
    "Tensor ids, Tensor? valid, str score, float rho, bool normalize, float scale) -> "
    "Tensor",
    "quantize_fp8(Tensor x, int rows=1, int columns=0, int part_rows=0, Tensor? "
    "expert_offset=None, Tensor? factor=None, Tensor? largest=None) -> (Tensor, Tensor)",
    "dequantize_fp8(Tensor bytes, Tensor scales, ScalarType dtype, int rows=1, int "
    "columns=0, int part_rows=0, Tensor? expert_offset=None) -> Tensor",
    "jitter(Tensor x, float epsilon, int seed=0, int step=0, int layer=0, int "
    "first_token=0, Tensor? index=None) -> Tensor",
    "normal_noise(Tensor like, float std, str purpose, int seed=0, int step=0, int layer=0, "
    "int first_token=0, Tensor? index=None) -> Tensor",
    "linear_fp8(Tensor x, Tensor w, *, bool weight_grad=True, bool emulate=False, str "
    "recipe=\"row\") -> Tensor",
    "low_bit_pack(Tensor x, str format) -> (Tensor values, Tensor scales)",
    "low_bit_unpack(Tensor values, Tensor scales, str format, ScalarType dtype) -> Tensor",
    "low_bit_linear(Tensor x, Tensor values, Tensor scales, str format) -> Tensor",
    "low_bit_grouped_gemm(Tensor x, Tensor values, Tensor scales, str format, Tensor "
    "expert_offset) -> Tensor",
    "moe_ffn_forward(Tensor x, Tensor weights, Tensor w1, Tensor? b1, Tensor w2, Tensor? "
    "b2, Tensor? up, Tensor[] plan, str activation, float? clamp, float offset, bool "
    "up_columns, bool down_columns, bool interleaved, bool hidden_only) -> (Tensor out, "
    "Tensor hidden)",
    "moe_ffn_backward(Tensor grad_out, Tensor x, Tensor weights, Tensor hidden, Tensor w1, "
    "Tensor? b1, Tensor w2, Tensor? b2, Tensor? up, Tensor[] plan, str activation, float? "
    "clamp, float offset, bool up_columns, bool down_columns, bool interleaved, bool[7] "
    "needs) -> Tensor[]",
    "moe_ffn_backward_(Tensor grad_out, Tensor x, Tensor weights, Tensor(a!) hidden, Tensor "
    "w1, Tensor? b1, Tensor w2, Tensor? b2, Tensor? up, Tensor[] plan, str activation, "
    "float? clamp, float offset, bool up_columns, bool down_columns, bool interleaved, "
    "bool[7] needs) -> Tensor[]",
    "moe_ffn(Tensor x, Tensor weights, Tensor w1, Tensor w2, Tensor[] plan, *, Tensor? "
    "b1=None, Tensor? b2=None, Tensor? up=None, str activation=\"silu\", float? clamp=None, "
    "float offset=0., bool up_columns=False, bool down_columns=False, bool "
    "interleaved=False, bool keep_hidden=True, int input_bits=-1, int hidden_bits=-1) -> "
    "Tensor",
    "moe_ffn_fp8(Tensor x, Tensor weights, Tensor w1, Tensor w2, Tensor[] plan, *, str "
    "activation=\"silu\", float? clamp=None, float offset=0., bool weight_grad=True, bool "
    "emulate=False, str recipe=\"row\") -> Tensor",
    "norm(Tensor x, Tensor? residual, Tensor weight, Tensor? bias, str kind, float eps) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    "norm_backward(Tensor grad_y, Tensor? grad_sum, Tensor s, Tensor weight, Tensor mean, "
    "Tensor rstd, str kind, bool has_bias) -> (Tensor, Tensor, Tensor)",
    "list_copies(Tensor ids, Tensor? index, Tensor owners, Tensor replicas, bool slices, "
    "int first, int per, int count, SymInt capacity) -> (Tensor row_target, Tensor "
    "copy_target, Tensor counts)",
    "tell_copies(Tensor ids, Tensor scores, Tensor row_target, Tensor copy_target, Tensor "
    "copy_slot, Tensor? local, bool with_token) -> (Tensor token, Tensor message)",
    "route_forward(Tensor logits, Tensor? bias, Tensor? beta, Tensor? valid, Tensor? "
    "given_ids, int choices, str score, str weighting, float norm, float scale, int groups, "
    "int keep_groups, int group_best, SymInt sequences, bool balance) -> (Tensor ids, "
    "Tensor weights, Tensor counts, Tensor lse, Tensor probs, Tensor plain_counts, Tensor "
    "tokens, Tensor lse_squares, Tensor kept_scores)",
    "route_backward(Tensor logits, Tensor ids, Tensor? grad_weights, Tensor? grad_probs, "
    "Tensor? grad_lse_squares, Tensor? valid, int choices, str score, str weighting, float "
    "norm, float scale, SymInt sequences) -> Tensor",
    "route(Tensor logits, int k, *, str score=\"softmax\", str weighting=\"raw\", float "
    "norm=1., float scale=1., Tensor? bias=None, Tensor? beta=None, Tensor? valid=None, "
    "Tensor? given_ids=None, int groups=1, int keep_groups=1, int group_best=1, SymInt "
    "sequences=1, bool balance=True) -> (Tensor ids, Tensor weights, Tensor counts, Tensor "
    "lse, Tensor probs, Tensor plain_counts, Tensor tokens, Tensor lse_squares, Tensor "
    "kept_scores)",
};

TEST(OpArgs, OperatorsHaveTheirSchemas) {
  for (const char* schema : kSchemas) {
    const c10::FunctionSchema want = torch::jit::parseSchema(std::string("troupe::") + schema);
    const auto found = c10::Dispatcher::singleton().findSchema({want.name(), ""});
    ASSERT_TRUE(found.has_value()) << schema;
    EXPECT_EQ(c10::toString(found->schema()), c10::toString(want));
  }
}

struct CheckedProbe {
  const at::Tensor& beside;
  const at::Tensor& x;
  const std::optional<at::Tensor>& factor;
  const at::Tensor& ids;
  const at::Tensor& sum;

  static constexpr const char *kName = "checked", *kResults = "()";
  static auto visit(auto& a, auto&& f) {
    return f(arg("beside", a.beside, Dims{"...D"}, kLeadType), arg("x", a.x, Dims{"TD"}, kLead),
             arg("factor", a.factor, Dims{"T"}, kWideType), arg("ids", a.ids, Dims{"TK"}, kIntType),
             arg("sum", a.sum, Dims{"1*"}));
  }
};

class CheckArgs : public ::testing::Test {
 protected:
  at::Tensor x = at::zeros({4, 3}, at::kHalf), beside = at::zeros({2, 5, 3}, at::kHalf),
             ids = at::zeros({4, 2}, at::kInt), sum = at::zeros({1, 9});
  std::optional<at::Tensor> factor = at::zeros({4});

  DimSizes check(DimSizes known = {}) const {
    return check_args(CheckedProbe{beside, x, factor, ids, sum}, known);
  }
};

TEST_F(CheckArgs, GivesSizesByTheirLetters) {
  const DimSizes sizes = check();
  EXPECT_EQ(sizes['T'], 4);
  EXPECT_EQ(sizes['D'], 3);
  EXPECT_EQ(sizes['K'], 2);
  TROUPE_EXPECT_REFUSAL(sizes['E'], "size E");
  factor = std::nullopt;
  EXPECT_EQ(check({{'K', 2}})['K'], 2);
}

TEST_F(CheckArgs, RefusesSizes) {
  TROUPE_EXPECT_REFUSAL(check({{'K', 3}}), "checked: ids must have sizes [4, 3]");
  x = at::zeros({4, 3, 1}, at::kHalf);
  TROUPE_EXPECT_REFUSAL(check(), "checked: x must have sizes [-1, -1]");
  x = at::zeros({4, 8}, at::kHalf);
  TROUPE_EXPECT_REFUSAL(check(), "checked: beside must have sizes [8]");
  x = at::zeros({5, 3}, at::kHalf);
  TROUPE_EXPECT_REFUSAL(check(), "checked: factor must have sizes [5]");
  x = at::zeros({4, 3}, at::kHalf), sum = at::zeros({2, 9});
  TROUPE_EXPECT_REFUSAL(check(), "checked: sum must have sizes [1, -1]");
  sum = at::Tensor();
  TROUPE_EXPECT_REFUSAL(check(), "checked: sum must have sizes [1, -1]");
}

TEST_F(CheckArgs, RefusesTypesAndDevices) {
  beside = beside.to(at::kFloat);
  TROUPE_EXPECT_REFUSAL(check(), "checked: beside must be of type Half");
  beside = beside.to(at::kHalf), ids = ids.to(at::kLong);
  TROUPE_EXPECT_REFUSAL(check(), "checked: ids must be of type Int");
  ids = ids.to(at::kInt), factor = at::zeros({4}, at::kDouble);
  TROUPE_EXPECT_REFUSAL(check(), "checked: factor must be of type Float");
  x = x.to(at::kDouble), beside = beside.to(at::kDouble);
  EXPECT_EQ(check()['T'], 4);
  sum = at::empty({1, 9}, at::kMeta);
  TROUPE_EXPECT_REFUSAL(check(), "checked: sum must be on cpu");
}

}  // namespace
}  // namespace troupe
