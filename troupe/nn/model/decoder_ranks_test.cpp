// A model whose matrices and tokens are cut over ranks, and the tokens of its rows over others, is
// the model of one process, in f64: loss, auxiliary losses and every gradient, whatever the
// modules.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "troupe/core/config/config.h"
#include "troupe/distributed/dispatch/all_to_all_dispatcher.h"
#include "troupe/nn/model/cut_batch_test.h"
#include "troupe/nn/model/model.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_threads;

constexpr int64_t kVocab = 200;

ModelConfig config_of(const std::string& extra) {
  ModelConfig config;
  for (const std::string& part :
       {std::string("layers: 2, width: 24, heads: 4, vocab: 200, max_positions: 64, "
                    "init_std: 0.1, vocab_pad: 512, z_loss: 0.0078125"),
        extra}) {
    read_config(parse_yaml("{" + part + "}", "tiny"), config);
  }
  return config;
}

Batch batch_of(int64_t rows, int64_t tokens, bool packed) {
  const at::Tensor ids = at::randint(kVocab, {rows, tokens + 1}, at::kLong);
  Batch out{.ids_BS = ids.narrow(1, 0, tokens).contiguous(),
            .labels_BS = ids.narrow(1, 1, tokens).contiguous()};
  out.weights_BS = at::randint(1, 4, {rows, tokens}, at::kFloat) / 2;
  if (rows * tokens > 2) out.labels_BS.view(-1)[2] = -100;
  if (!packed) return out;
  out.documents_BS = at::zeros({rows, tokens}, at::kInt);
  out.documents_BS.narrow(1, tokens / 3, tokens - tokens / 3).fill_(1);
  out.valid_BS = out.documents_BS.ge(0);
  out.valid_BS[rows - 1][tokens - 1] = false;
  return out;
}

// What a step of one microbatch gives.
struct Result {
  std::map<std::string, double> losses;
  std::map<std::string, at::Tensor> gradients;  // whole tensors
};

// The part of a whole tensor that `p` has, to be added to or read.
at::Tensor box_of(const at::Tensor& whole, const Param& p) {
  at::Tensor out = whole;
  for (size_t d = p.per_expert ? 1 : 0; d < p.size.size(); ++d) {
    out = out.narrow(static_cast<int64_t>(d), p.offset[d], p.size[d]);
  }
  return out;
}

void add_gradient(at::Tensor& whole, const Param& p) {
  if (!p.value.grad().defined()) return;
  if (!whole.defined()) whole = at::zeros(p.global, at::kDouble);
  const at::Tensor grad = p.value.grad().view(p.size), box = box_of(whole, p);
  if (!p.per_expert) {
    box.add_(grad);
    return;
  }
  for (size_t i = 0; i < p.experts.size(); ++i) {
    box[p.experts[i]].add_(grad[static_cast<int64_t>(i)]);
  }
}

// Adds this rank's share to `out`.
void run(const ModelConfig& config, const BuildOptions& options, const Batch& batch, Result& out,
         std::mutex& mutex) {
  auto model = build_model(config, options);
  model->for_each_param(-1, [](const std::string& name, Param& p) {
    p.allocate(p.fp32 ? at::kFloat : at::kDouble);
    if (name.ends_with("lora_b")) p.init = {.kind = Init::kNormal, .std = 0.3};  // not zero
    initialize(p, name, 5);
  });
  const Context context{.training = true, .seed = 3, .step = 2, .first_token = 1000};
  at::Tensor h, total;
  std::map<std::string, at::Tensor> losses;
  for (int64_t u = 0; u < model->num_units(); ++u) {
    const UnitResult r = model->forward(u, h, batch, context);
    h = r.h;
    const auto add = [&](const std::string& name, const at::Tensor& value) {
      if (!value.defined()) return;
      losses[name] = losses.contains(name) ? losses[name] + value : value;
      total = total.defined() ? total + value : value;
    };
    for (const MoeLoss& loss : r.losses) add(loss.name, loss.value);
    add("loss", r.loss_sum);
    add("mtp", r.mtp_sum);
  }
  total.backward();
  const std::lock_guard lock(mutex);
  for (const auto& [name, value] : losses) out.losses[name] += value.item<double>();
  model->for_each_param(-1, [&](const std::string& name, Param& p) {
    at::Tensor& whole = out.gradients[name];
    const at::NoGradGuard no_grad;
    add_gradient(whole, p);
  });
}

void expect_same(const Result& many, const Result& one, const std::string& ranks) {
  ASSERT_EQ(many.losses.size(), one.losses.size());
  for (const auto& [name, value] : one.losses) {
    EXPECT_NEAR(many.losses.at(name), value, 1e-10 * std::abs(value)) << name << ", " << ranks;
  }
  ASSERT_EQ(many.gradients.size(), one.gradients.size());
  for (const auto& [name, gradient] : one.gradients) {
    const at::Tensor& other = many.gradients.at(name);
    ASSERT_EQ(gradient.defined(), other.defined()) << name;
    if (!gradient.defined()) continue;
    const double scale = gradient.abs().max().item<double>() + 1e-6;
    EXPECT_LT((gradient - other).abs().max().item<double>() / scale, 1e-10)
        << name << ", " << ranks;
  }
}

struct Case {
  std::string name, form;
  std::vector<int> ranks = {2, 4};
  bool split_vocab = true, split_shared = true;
  bool spread = false;  // experts over the ranks that share matrices
  int64_t slices = 1;   // of each expert
  bool packed = false;
  int64_t rows = 3, tokens = 7;  // uneven over 2 and 4 ranks
};

class TensorRanks : public ::testing::TestWithParam<Case> {};

TEST_P(TensorRanks, AreOneProcess) {
  const Case& c = GetParam();
  at::manual_seed(7);
  const ModelConfig config = config_of(c.form);
  const Batch batch = batch_of(c.rows, c.tokens, c.packed);
  std::mutex mutex;
  Result one;
  run(config, {}, batch, one, mutex);
  for (const int ranks : c.ranks) {
    Result many;
    in_threads(ranks, [&](World& world) {
      BuildOptions options;
      options.tensor = {.sharding = TokenSharding(world.group(world.all()->ranks(), "tensor")),
                        .split_vocab = c.split_vocab,
                        .split_shared = c.split_shared};
      if (c.spread) {
        options.dispatcher = [&](int64_t, const MoeConfig& moe) {
          const ExpertPlacement p = sliced(moe.experts, ranks / c.slices, c.slices, moe.ffn.hidden);
          return all_to_all_dispatcher(world.all(), p, DispatchMode::kFast, WireType::kNative);
        };
      }
      run(config, options, batch, many, mutex);
    });
    expect_same(many, one, std::to_string(ranks) + " ranks");
  }
}

constexpr const char* kMoe =
    "moe: {experts: 8, top_k: 2, hidden: 16, shared: {experts: 1, hidden: 16, form: gate}, "
    "router: {kind: topk_softmax, balance: {aux_loss: 0.1, seq_loss: 0.2, global_loss: 0.3, "
    "batched_loss: 0.1, batched_scope: group, z_loss: 0.01}}}";

INSTANTIATE_TEST_SUITE_P(
    Forms, TensorRanks,
    ::testing::Values(
        Case{"gpt2",
             "ffn: 40, bias: true, norm: {kind: layer, bias: true}, act: gelu, positions: "
             "learned, tie_embeddings: true"},
        Case{"whole_tables",
             "ffn: 40, positions: learned, tie_embeddings: true",
             {2, 4},
             /*split_vocab=*/false,
             true,
             false,
             1,
             /*packed=*/true},
        Case{"few_key_heads",
             "heads: 8, kv_heads: 2, head_dim: 6, ffn: 40, sinks: true, window: 3",
             {2, 4, 8}},
        Case{"one_key_head_normed", "kv_heads: 1, head_dim: 6, ffn: 40, qk_norm: whole"},
        Case{"whole_norm_of_layers",
             "ffn: 40, qk_norm: whole, norm: {kind: layer}, kv_heads: 2, bias: true",
             {2, 4}},
        Case{"head_norm_clipped",
             "kv_heads: 2, head_dim: 6, ffn: 40, qk_norm: head, clip_qkv: 0.3"},
        Case{"latents",
             "mla: {kv_rank: 12, q_rank: 8, nope_dim: 8, rope_dim: 4, value_dim: 6}, ffn: 24, "
             "mtp: {depth: 2}"},
        Case{"latents_without_rank",
             "mla: {kv_rank: 12, q_rank: 0, nope_dim: 8, rope_dim: 4, value_dim: 6}, ffn: 24"},
        Case{"dropped", "kv_heads: 2, head_dim: 6, ffn: 40, dropout: 0.2, attn_dropout: 0.3"},
        Case{"experts", kMoe},
        Case{"experts_whole_shared", kMoe, {2}, true, /*split_shared=*/false},
        Case{"experts_folded", kMoe, {2, 4}, true, true, /*spread=*/true, 1, /*packed=*/true},
        Case{"experts_sliced", kMoe, {4}, true, true, /*spread=*/true, /*slices=*/2},
        Case{"adapters",
             "heads: 8, kv_heads: 2, head_dim: 6, ffn: 40, bias: true, lora: {rank: 3, targets: "
             "[attention, ffn]}",
             {2, 4, 8}},
        Case{"adapters_dropped",
             "kv_heads: 2, head_dim: 6, ffn: 40, act: gelu, lora: {rank: 3, dropout: 0.3, targets: "
             "[attention, ffn]}"},
        Case{"adapters_of_latents",
             "mla: {kv_rank: 12, q_rank: 8, nope_dim: 8, rope_dim: 4, value_dim: 6}, ffn: 24, "
             "lora: {rank: 2, dropout: 0.3, targets: [attention, ffn]}"},
        Case{"adapters_of_latents_without_rank",
             "mla: {kv_rank: 12, q_rank: 0, nope_dim: 8, rope_dim: 4, value_dim: 6}, ffn: 24, "
             "lora: {rank: 2, dropout: 0.3}"},
        Case{"adapters_of_experts",
             std::string(kMoe) + ", lora: {rank: 2, dropout: 0.3, targets: [attention, experts, "
                                 "shared, router]}"},
        Case{"adapters_of_experts_whole_shared",
             std::string(kMoe) + ", lora: {rank: 2, dropout: 0.3, targets: [shared]}",
             {2},
             true,
             /*split_shared=*/false},
        Case{"adapters_of_experts_folded",
             std::string(kMoe) + ", lora: {rank: 2, targets: [attention, experts, shared]}",
             {2, 4},
             true,
             true,
             /*spread=*/true},
        Case{"one_token", kMoe, {4}, true, true, true, 1, false, 1, 1}),
    [](const auto& given) { return given.param.name; });

// Documents that begin anywhere, also with every token, and some padding behind the last.
void pack(Batch& batch) {
  const int64_t rows = batch.ids_BS.size(0), tokens = batch.ids_BS.size(1);
  batch.documents_BS = at::zeros({rows, tokens}, at::kInt);
  for (int64_t b = 0; b < rows; ++b) {
    int32_t document = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      document += t > 0 && (t * 7 + b * 5) % 11 < 2;
      batch.documents_BS[b][t] = document;
    }
  }
  batch.valid_BS = batch.documents_BS.ge(0);
  batch.valid_BS[rows - 1].narrow(0, tokens - 5, 5).fill_(false);
}

struct ContextCase {
  std::string name, form;
  bool packed = false, spread = false;
  std::vector<std::pair<int, int>> ranks = {{2, 1}, {3, 1}, {4, 1}, {2, 2}};  // context, tensor
  bool heads = false;  // exchanged in place of keys
};

class ContextRanks : public ::testing::TestWithParam<ContextCase> {};

TEST_P(ContextRanks, AreOneProcess) {
  const ContextCase& c = GetParam();
  at::manual_seed(7);
  const ModelConfig config = config_of(c.form);
  Batch batch = batch_of(2, 24, false);
  if (c.packed) pack(batch);
  std::mutex mutex;
  Result one;
  run(config, {}, batch, one, mutex);
  for (const auto& [context, tensor] : c.ranks) {
    Result many;
    in_threads(context * tensor, [&, context = context, tensor = tensor](World& world) {
      const int64_t own = world.rank() / tensor;
      std::vector<int64_t> sharers, others;
      for (int64_t r = 0; r < tensor; ++r) sharers.push_back(own * tensor + r);
      for (int64_t r = 0; r < context; ++r) others.push_back(r * tensor + world.rank() % tensor);
      BuildOptions options;
      options.tensor = {.sharding = TokenSharding(world.group(sharers, "tensor")),
                        .split_vocab = tensor > 1,
                        .split_shared = tensor > 1,
                        .keys = KvExchange(world.group(others, "context")),
                        .microbatch = TokenSharding(world.group(world.all()->ranks(), "all"))};
      if (c.heads) options.tensor.head_exchange = HeadExchange(options.tensor.keys.group());
      if (c.spread) {
        options.dispatcher = [&](int64_t, const MoeConfig& moe) {
          const ExpertPlacement p = sliced(moe.experts, world.size(), 1, moe.ffn.hidden);
          return all_to_all_dispatcher(world.all(), p, DispatchMode::kFast, WireType::kNative);
        };
      }
      const RowCut cut{context, own, config.mtp.depth};
      run(config, options, cut_batch(batch, cut), many, mutex);
    });
    expect_same(many, one, std::to_string(context) + " x " + std::to_string(tensor) + " ranks");
  }
}

constexpr const char* kAllLosses =
    "moe: {experts: 8, top_k: 2, hidden: 16, shared: {experts: 1, hidden: 16, form: gate}, "
    "router: {kind: topk_softmax, jitter: 0.1, limit: {groups: 4, keep: 2}, balance: {aux_loss: "
    "0.1, seq_loss: 0.2, global_loss: 0.3, batched_loss: 0.1, batched_scope: all, device_loss: "
    "0.2, communication_loss: 0.1, z_loss: 0.01}}}";

std::string routed_by(const std::string& router, const std::string& more = "") {
  return "moe: {experts: 8, top_k: 2, hidden: 16, " + more + "router: {" + router + "}}";
}

INSTANTIATE_TEST_SUITE_P(
    Forms, ContextRanks,
    ::testing::Values(
        ContextCase{"learned_positions",
                    "ffn: 40, bias: true, norm: {kind: layer, bias: true}, act: gelu, positions: "
                    "learned, tie_embeddings: true"},
        ContextCase{"learned_positions_packed", "ffn: 40, positions: learned", true},
        ContextCase{"few_key_heads", "heads: 8, kv_heads: 2, head_dim: 6, ffn: 40", true},
        ContextCase{"sinks_and_windows",
                    "heads: 8, kv_heads: 2, head_dim: 6, ffn: 40, sinks: true, window: 3"},
        ContextCase{"sinks_and_windows_packed",
                    "heads: 8, kv_heads: 2, head_dim: 6, ffn: 40, sinks: true, window: 7", true},
        ContextCase{"head_norm_clipped",
                    "kv_heads: 2, head_dim: 6, ffn: 40, qk_norm: head, clip_qkv: 0.3", true},
        ContextCase{"whole_norm", "kv_heads: 2, head_dim: 6, ffn: 40, qk_norm: whole", true},
        ContextCase{"latents",
                    "mla: {kv_rank: 12, q_rank: 8, nope_dim: 8, rope_dim: 4, value_dim: 6}, ffn: "
                    "24, mtp: {depth: 2}",
                    true},
        ContextCase{"latents_without_rank",
                    "mla: {kv_rank: 12, q_rank: 0, nope_dim: 8, rope_dim: 4, value_dim: 6}, ffn: "
                    "24"},
        ContextCase{"more_tokens_ahead", "kv_heads: 2, ffn: 40, mtp: {depth: 3}", true},
        ContextCase{"heads_exchanged",
                    "heads: 8, kv_heads: 4, head_dim: 6, ffn: 40, sinks: true, window: 7, qk_norm: "
                    "head, mtp: {depth: 1}",
                    true,
                    false,
                    {{2, 1}, {4, 1}, {2, 2}},
                    true},
        ContextCase{"dropped", "kv_heads: 2, head_dim: 6, ffn: 40, dropout: 0.2", true},
        ContextCase{"adapters_dropped",
                    "kv_heads: 2, head_dim: 6, ffn: 40, lora: {rank: 3, dropout: 0.3, targets: "
                    "[attention, ffn]}",
                    true,
                    false,
                    {{2, 1}, {3, 1}, {4, 1}}},
        ContextCase{"adapters_of_experts_dropped",
                    std::string(kMoe) + ", lora: {rank: 2, dropout: 0.3, targets: [experts, "
                                        "shared, router]}",
                    true,
                    false,
                    {{2, 1}, {4, 1}}},
        ContextCase{"experts", kAllLosses},
        ContextCase{"experts_folded", kAllLosses, true, true, {{2, 1}, {4, 1}, {2, 2}, {4, 2}}},
        ContextCase{"group_losses", kMoe, true},
        ContextCase{"capacity_of_the_group",
                    routed_by("kind: topk_softmax", "capacity: {factor: 1, scope: group}, "), true},
        ContextCase{"sinkhorn", routed_by("kind: sinkhorn, scope: group"), true},
        ContextCase{"expert_choice", routed_by("kind: expert_choice, rho: 0.25, scope: group"),
                    true},
        ContextCase{"quantile", routed_by("kind: quantile"), true},
        ContextCase{"sigmoid", routed_by("kind: sigmoid_bias, balance: {seq_loss: 0.2}"), true},
        ContextCase{"forced_uniform", routed_by("kind: topk_softmax, force: uniform"), true},
        ContextCase{"forced_random", routed_by("kind: topk_softmax, force: random"), true}),
    [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace troupe
