// model.lora.frozen: a run whose frozen matrices are in few bits computes what it would with the
// unpacked ones in full precision, and never holds more of them in full than a matrix of one expert.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "troupe/core/config/config.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/testing/torch/live_bytes.h"
#include "troupe/train/recipe/recipe_of_test.h"
#include "troupe/train/run/trained_model.h"
#include "troupe/train/step/learner.h"

namespace troupe {
namespace {

constexpr int64_t kRows = 4, kTokens = 16;
// A layer with experts and a shared one, with biases, and a dense one.
constexpr const char* kModel =
    "model: {layers: 2, width: 128, heads: 4, vocab: 64, max_positions: 64, ffn: 256, bias: true,\n"
    "        moe: {experts: 8, top_k: 2, hidden: 128, bias: true, shared: {experts: 1}},\n"
    "        overrides: [{layers: [1], experts: 0}]}\n"
    "data: {sequence: 16}\n"
    "train: {global_batch: 4, micro_batch: 4, steps: 10, precision: fp32, clip: 0,\n"
    "        optimizer: {kind: sgd, lr: 0.05}, schedule: {kind: constant, warmup: 0}}\n"
    "checkpoint: {dir: run}\n"
    "run: {device: cpu}\n";
constexpr const char* kAll = "targets: [attention, experts, shared, ffn]";

// `more`: further keys of the model.
std::string with_lora(const std::string& targets, const std::string& frozen,
                      const std::string& more = "") {
  return "model: {" + more + "lora: {rank: 2, " + targets +
         (frozen.empty() ? "" : ", frozen: " + frozen) + "}}\n";
}

std::string all_in(const std::string& format) {
  return "{format: " + format + ", " + kAll + "}";
}

Feed token_feed() {
  TokenBatch batch{.B = kRows, .S = kTokens};
  for (int64_t b = 0; b < kRows; ++b) {
    for (int64_t s = 0; s <= kTokens; ++s) {
      batch.ids.push_back(static_cast<int32_t>((b * 31 + s * s * 7 + s) % 64));
      if (s == kTokens) continue;
      batch.weights.push_back(1);
      batch.positions.push_back(static_cast<int32_t>(s));
      batch.documents.push_back(0);
    }
    batch.sources.push_back(0);
  }
  return make_feed(batch, kRows, c10::kCPU, 0, {});
}

std::unique_ptr<Learner> learner_of(const std::string& more, const Faults& none) {
  at::set_num_threads(1);
  return std::make_unique<Learner>(resolve_alone(recipe_of(more, kModel)), c10::kCPU, none);
}

std::map<std::string, Param*> params_of(Learner& learner) {
  std::map<std::string, Param*> out;
  learner.model().for_each_param(-1, [&](const std::string& name, Param& p) { out[name] = &p; });
  return out;
}

at::Tensor unpacked(const Param& p) {
  return low_bit_unpack(p.low_bit->packed, p.low_bit->format, at::kFloat);
}

// The weights in few bits of `from`, in full, for `to`.
int64_t copy_unpacked(Learner& from, Learner& to) {
  const at::NoGradGuard no_grad;
  const std::map<std::string, Param*> theirs = params_of(to);
  int64_t copied = 0;
  for (const auto& [name, p] : params_of(from)) {
    if (!p->low_bit) continue;
    theirs.at(name)->value.copy_(unpacked(*p).view(theirs.at(name)->value.sizes()));
    ++copied;
  }
  return copied;
}

struct LowBitCase {
  std::string frozen, lora;
  int64_t matrices;  // in few bits
};

class LowBitWeights : public ::testing::TestWithParam<LowBitCase> {};

TEST_P(LowBitWeights, TrainAdaptersAsTheUnpackedWeightsInFullDo) {
  const LowBitCase& c = GetParam();
  const Faults none;
  const auto packed = learner_of(with_lora(c.lora, c.frozen), none);
  const auto full = learner_of(with_lora(c.lora, ""), none);
  EXPECT_EQ(copy_unpacked(*packed, *full), c.matrices);
  std::map<std::string, at::Tensor> before;
  for (const auto& [name, p] : params_of(*packed)) {
    if (p->trainable()) before[name] = p->value.detach().clone();
  }
  TrainState a, b;
  for (int step = 0; step < 3; ++step) {
    const StepReport in_bits = packed->step(token_feed(), a), in_full = full->step(token_feed(), b);
    EXPECT_NEAR(in_bits.loss, in_full.loss, 1e-5 * std::abs(in_full.loss)) << step;
    EXPECT_NEAR(in_bits.grad_norm, in_full.grad_norm, 1e-4 * in_full.grad_norm) << step;
  }
  const std::map<std::string, Param*> in_full = params_of(*full);
  for (const auto& [name, p] : params_of(*packed)) {
    if (!p->trainable()) continue;
    EXPECT_TRUE(p->value.allclose(in_full.at(name)->value, 1e-3, 1e-6)) << name;
    EXPECT_FALSE(at::equal(p->value, before.at(name))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, LowBitWeights,
    ::testing::Values(
        // Two matrices of experts, of the shared one and of the dense layer; four in each attention.
        LowBitCase{all_in("nf4"), kAll, 14}, LowBitCase{all_in("int8"), kAll, 14},
        LowBitCase{all_in("fp8"), kAll, 14}, LowBitCase{all_in("mxfp4"), kAll, 14},
        // Without an adapter beside them, and the other way about.
        LowBitCase{all_in("nf4"), "targets: [router]", 14},
        LowBitCase{"{}", "targets: [attention]", 2},
        LowBitCase{"{targets: [attention]}", "targets: [experts]", 8}));

TEST(LowBitRecompute, OfTheActivationChangesNoBit) {
  const Faults none;
  double losses[2];
  for (const bool again : {false, true}) {
    const auto learner =
        learner_of(with_lora(kAll, "{}", again ? "moe: {recompute: act}, " : ""), none);
    TrainState state;
    learner->step(token_feed(), state);
    losses[again] = learner->step(token_feed(), state).loss;
  }
  EXPECT_EQ(losses[0], losses[1]);
}

// A model that has nearly all of its bytes in experts.
constexpr const char* kManyExperts =
    "overrides: [], moe: {experts: 32, hidden: 256, bias: false, shared: {experts: 0}}, ";
constexpr int64_t kExpertBytes = int64_t{2} * 256 * 128 * 4;  // W1 of an expert, in f32

int64_t full_bytes(Learner& learner) {  // of what is in few bits
  int64_t out = 0;
  for (const auto& [name, p] : params_of(learner)) out += p->low_bit ? p->numel() * 4 : 0;
  return out;
}

// Beside what stays: pieces of one expert as they are drawn or read, widened and packed.
constexpr int64_t kAtWork = 12 * kExpertBytes;

TEST(LowBitMemory, WeightsAreDrawnAnExpertAtATime) {
  const Faults none;
  const auto bytes = std::make_shared<testing::LiveBytes>();
  std::unique_ptr<Learner> learner;
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
    learner = learner_of(with_lora("targets: [attention]", "{}", kManyExperts), none);
  }
  EXPECT_GT(full_bytes(*learner), 2 * kAtWork);
  EXPECT_LE(bytes->peak, bytes->live + kAtWork);
  EXPECT_LE(bytes->live, full_bytes(*learner) / 2);
}

TEST(LowBitMemory, WeightsAreLoadedAndPackedAnExpertAtATime) {
  const Faults none;
  const testing::TemporaryFolder folder;
  const auto base = learner_of(std::string("model: {") + kManyExperts + "z_loss: 0}\n", none);
  {
    CheckpointState state;
    base->checkpoint().add_to(state, {.weights_alone = true});
    Fs fs;
    CheckpointConfig config;
    config.dir = folder / "base";
    config.background = false;
    Saver saver(config, "0123456789abcdef", CheckpointGroup(), Log(), fs, none);
    saver.go_on_from(-1);
    saver.save(state, {.step = 0});
    saver.wait();
  }
  const auto learner = learner_of(with_lora("targets: [attention]", "{format: nf4}", kManyExperts) +
                                      "train: {seed: 9}\ncheckpoint: {init_from: base}\n",
                                  none);
  const auto bytes = std::make_shared<testing::LiveBytes>();
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
    LoadOptions options{.waive_missing = {"*lora_a", "*lora_b"}};
    options.threads = 1;  // whose tensors are counted
    load_weights(*learner, folder / "base/step-000000", options, none);
  }
  EXPECT_LE(bytes->peak, kAtWork);
  const std::map<std::string, Param*> whole = params_of(*base);
  int64_t compared = 0;
  for (const auto& [name, p] : params_of(*learner)) {
    if (!p->low_bit) continue;
    const LowBit want = low_bit_pack(whole.at(name)->value.detach(), LowBitFormat::kNf4);
    EXPECT_TRUE(at::equal(p->low_bit->packed.values, want.values)) << name;
    EXPECT_TRUE(at::equal(p->low_bit->packed.scales, want.scales)) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 4);
  CheckpointState saved;
  learner->checkpoint().add_to(saved, {});
  for (const CheckpointState::Part& part : saved.parts()) {
    EXPECT_EQ(part.tensor.name.find(".experts."), std::string::npos) << part.tensor.name;
  }
}

}  // namespace
}  // namespace troupe
