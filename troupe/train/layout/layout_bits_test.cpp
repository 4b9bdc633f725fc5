// run.bits layout: losses, norms, gradients and weights of a run over ranks that are threads are
// those of one process bit for bit, in every factoring of 2, 3, 4, 6 and 8 ranks into pipelines,
// data ranks and expert ranks, with state shared in every way.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "troupe/train/layout/layout_run_test.h"

namespace troupe {
namespace {

constexpr int64_t kBitsSteps = 3;
// Five microbatches: of six ranks and eight some have none. Eight units, for eight stages.
constexpr const char* kBitsModel =
    "model: {layers: 6, width: 32, heads: 4, kv_heads: 2, vocab: 200, max_positions: 64, ffn: 48, "
    "first_dense: 1, qk_norm: head, tie_embeddings: true, mtp: {depth: 1}, dropout: 0.1, moe: "
    "{experts: 8, top_k: 2, hidden: 16, shared: {experts: 1, hidden: 16}, router: {kind: "
    "topk_softmax, jitter: 0.01, balance: {aux_loss: 0.05, seq_loss: 0.05, batched_loss: 0.05, "
    "z_loss: 0.001}}}}\n"
    "data: {sequence: 32}\n"
    "train: {global_batch: 10, micro_batch: 2, steps: 10, clip: 0.5, precision: fp32, optimizer: "
    "{kind: adamw, lr: 0.003}, schedule: {warmup: 0}}\n"
    "run: {device: cpu, bits: layout}\n"
    "checkpoint: {dir: run}\n";

struct BitsSeen {
  std::vector<double> losses, mtps, norms;
  std::map<std::string, at::Tensor> gradients, weights, others;
};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == y.nbytes() && x.scalar_type() == y.scalar_type() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

// This rank's part of each tensor beside that of one process, or into `out`.
void compare_bits(Learner& learner, const BitsSeen* one, BitsSeen& out) {
  ParamStore& store = learner.store();
  for (size_t s = 0; s < store.slots().size(); ++s) {
    const auto& [name, p, unit] = store.slots()[s].named;
    const at::Tensor& own = store.gradients().of(static_cast<int64_t>(s));
    if (one == nullptr) {
      out.gradients[name] = own.view(p->size).clone();
      continue;
    }
    const OwnedRange range = store.owned(static_cast<int64_t>(s));
    const at::Tensor whole = box_of(one->gradients.at(name), *p).reshape({-1});
    EXPECT_TRUE(same_bits(own, whole.narrow(0, range.from, range.size))) << "gradient of " << name;
  }
  std::vector<int64_t> all;
  for (size_t b = 0; b < store.buckets().size(); ++b) all.push_back(static_cast<int64_t>(b));
  store.gather(all);
  store.need(all);
  learner.model().for_each_param(-1, [&](const std::string& name, Param& p) {
    const at::Tensor value = p.value.detach().view(p.size);
    if (one == nullptr) {
      out.weights[name] = value.clone();
    } else {
      EXPECT_TRUE(same_bits(value, box_of(one->weights.at(name), p))) << name;
    }
  });
}

BitsSeen bits_seen(const ResolvedRun& run, const Text& text,
                   const std::shared_ptr<const ParallelSetup>& setup, const BitsSeen* one) {
  const Faults none;
  Learner learner(run, c10::kCPU, none, setup);
  TrainState state;
  BitsSeen out;
  for (int64_t step = 0; step < kBitsSteps; ++step) {
    const StepReport report = learner.step(feed_of(run, text, *setup, step), state);
    EXPECT_TRUE(report.finite);
    out.losses.push_back(report.loss);
    out.mtps.push_back(report.mtp_loss);
    out.norms.push_back(report.grad_norm);
  }
  compare_bits(learner, one, out);
  return out;
}

struct BitsLayout {
  int pipeline, data, expert;
  const char* shard;
  const char* schedule = "1f1b";
  int shard_ranks = 0;

  int ranks() const { return pipeline * data; }
  std::string text() const {
    std::string out = "parallel: {tensor: 1, context: 1, expert_tensor: 1, dispatch: exact, ";
    out.append("pipeline: ").append(std::to_string(pipeline));
    out.append(", data: ").append(std::to_string(data));
    out.append(", expert: ").append(std::to_string(expert));
    if (8 % expert != 0) out += ", placement: uneven";
    out.append(", shard: ").append(shard);
    if (shard_ranks > 0) out.append(", shard_ranks: ").append(std::to_string(shard_ranks));
    if (pipeline > 1) out.append(", schedule: ").append(schedule);
    if (std::string(schedule) == "interleaved") out += ", virtual: 2";
    return out + "}\n";
  }
};

// Each factoring of these ranks; with few ranks each in every form of state.
std::vector<BitsLayout> bits_layouts(int ranks, bool every_form) {
  constexpr std::array kForms = {"none", "zero1", "full"};
  constexpr std::array kOrders = {"1f1b", "zb1p", "interleaved", "zbv", "dualpipev", "gpipe"};
  std::vector<BitsLayout> out;
  size_t number = static_cast<size_t>(ranks);
  for (int pp = 1; pp <= ranks; ++pp) {
    if (ranks % pp != 0) continue;
    const int dp = ranks / pp;
    for (int ep = 1; ep <= dp; ++ep) {
      if (dp % ep != 0) continue;
      for (size_t form = 0; form < kForms.size(); ++form) {
        if (!every_form && form != number % kForms.size()) continue;
        BitsLayout layout{pp, dp, ep, kForms[form]};
        if (pp > 1 && pp <= 4) layout.schedule = kOrders[(number + form) % kOrders.size()];
        out.push_back(layout);
        const int half = dp / 2;
        if (form != 2 || dp < 4 || (half % ep != 0 && ep % half != 0)) continue;
        layout.shard_ranks = half;  // HSDP
        out.push_back(layout);
      }
      ++number;
    }
  }
  return out;
}

// `more`: of all runs, what is not of the layout.
void expect_same_bits(const std::vector<BitsLayout>& layouts, const std::string& more,
                      const Text& text) {
  at::set_num_threads(1);
  const BitsSeen one = bits_seen(resolve_alone(recipe_of(more, kBitsModel)), text,
                                 std::make_shared<ParallelSetup>(), nullptr);
  for (const BitsLayout& layout : layouts) {
    SCOPED_TRACE(layout.text());
    testing::in_threads(layout.ranks(), [&](World& world) {
      at::set_num_threads(1);
      const ResolvedRun run = resolve(recipe_of(more + layout.text(), kBitsModel), world);
      const auto setup =
          std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), run);
      const BitsSeen own = bits_seen(run, text, setup, &one);
      EXPECT_TRUE(same_bits(own.losses, one.losses)) << layout.text();
      EXPECT_TRUE(same_bits(own.mtps, one.mtps)) << layout.text();
      EXPECT_TRUE(same_bits(own.norms, one.norms)) << layout.text();
    });
  }
}

const Text kBitsRows{.sequence = 32};

TEST(LayoutBits, OfTwoAndThreeRanksAreThoseOfOneProcess) {
  expect_same_bits(bits_layouts(2, true), "", kBitsRows);
  expect_same_bits(bits_layouts(3, true), "", kBitsRows);
}

TEST(LayoutBits, OfFourRanksAreThoseOfOneProcess) {
  expect_same_bits(bits_layouts(4, true), "", kBitsRows);
}

TEST(LayoutBits, OfSixAndEightRanksAreThoseOfOneProcess) {
  expect_same_bits(bits_layouts(6, false), "", kBitsRows);
  expect_same_bits(bits_layouts(8, false), "", kBitsRows);
}

TEST(LayoutBits, InBf16OfPackedDocumentsAndTheMeanOfMicrobatches) {
  const std::string more = "train: {precision: bf16, loss_mean: microbatches}\n";
  for (const int ranks : {2, 3, 4}) {
    expect_same_bits(bits_layouts(ranks, false), more, {.sequence = 32, .packed = true});
  }
}

TEST(LayoutBits, OfOtherRoutersAndOptimizers) {
  for (const char* more :
       {"model: {moe: {recompute: layer, router: {kind: sigmoid_bias, bias_rate: 0.01, balance: "
        "{seq_loss: 0.01}}}}\ntrain: {recompute: '[0]*3+[1]*3', optimizer: {kind: lion, moments: "
        "bf16}}\n",
        "model: {moe: {bias: true, router: {kind: sinkhorn}}}\ntrain: "
        "{optimizer: {kind: sgd}}\n",
        "model: {moe: {router: {kind: expert_choice}, gated: false, latent: 16}}\ntrain: "
        "{micro_batch: 1, optimizer: {kind: adamw, moments: bf16}}\n",
        "model: {moe: {capacity: {factor: 1.0}}}\n"}) {
    expect_same_bits({{1, 2, 2, "full"}, {1, 3, 3, "zero1"}, {2, 2, 2, "none", "zb1p"}}, more,
                     kBitsRows);
  }
}

// Without it, sums of f32 have other bits: the comparison can fail.
TEST(LayoutBits, WithoutItOtherLayoutsHaveOtherBits) {
  at::set_num_threads(1);
  const std::string more = "run: {bits: repeat}\n";
  const BitsSeen one = bits_seen(resolve_alone(recipe_of(more, kBitsModel)), kBitsRows,
                                 std::make_shared<ParallelSetup>(), nullptr);
  testing::in_threads(2, [&](World& world) {
    at::set_num_threads(1);
    const BitsLayout layout{1, 2, 1, "none"};
    const ResolvedRun run = resolve(recipe_of(more + layout.text(), kBitsModel), world);
    const auto setup =
        std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), run);
    BitsSeen own;
    const Faults none;
    Learner learner(run, c10::kCPU, none, setup);
    TrainState state;
    for (int64_t step = 0; step < kBitsSteps; ++step) {
      const StepReport report = learner.step(feed_of(run, kBitsRows, *setup, step), state);
      own.losses.push_back(report.loss);
      own.norms.push_back(report.grad_norm);
    }
    EXPECT_FALSE(same_bits(own.norms, one.norms) && same_bits(own.losses, one.losses));
  });
}

}  // namespace
}  // namespace troupe
