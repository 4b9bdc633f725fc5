// Blocks whose experts' weights are rounded to 8 bits beside attention (Experts::round_ahead).
#include "troupe/nn/blocks/block.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/config/config.h"
#include "troupe/ops/moe_ffn/moe_ffn_sm90.h"
#include "troupe/ops/support/device_graph.h"
#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int kTurns = 50;

void wait_for_all_streams(const c10::Device& device) {
  if (device.is_cpu()) return;
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

ModelConfig one_layer(const std::string& more) {
  ModelConfig config;
  for (const std::string& part :
       {std::string("layers: 1, width: 256, heads: 4, vocab: 61, max_positions: 64, "
                    "init_std: 0.1, moe: {experts: 4, top_k: 2, hidden: 128}"),
        more}) {
    read_config(parse_yaml("{" + part + "}", "block"), config);
  }
  return config;
}

// A model of one layer whose experts compute in 8 bits; its block alone is run.
class Fp8BlockRun {
 public:
  Fp8BlockRun(const c10::Device& device, const std::string& more) : device_(device) {
    (void)has_cuda();  // before PyTorch asks (ops/support/cuda_plugin.h)
    at::manual_seed(7);
    const auto options =
        at::TensorOptions(device).dtype(device.is_cpu() ? at::kFloat : at::kBFloat16);
    model_ = build_model(one_layer(more));
    model_->for_each_param(-1, [&](const std::string& name, Param& p) {
      p.allocate(p.fp32 ? options.dtype(at::kFloat) : options);
      initialize(p, name, 5);
    });
    const auto beside = std::make_shared<SideStream>();
    model_->for_each_moe(
        [&](int64_t, MoeLayer& moe) { moe.experts().compute_in_fp8({.beside = beside}); });
    batch_.ids_BS = at::randint(61, {4, 64}, options.dtype(at::kLong));
    h_ = at::randn({256, 256}, options);
    grad_ = at::randn({256, 256}, options);
  }

  Experts& experts() {
    Experts* out = nullptr;
    model_->for_each_moe([&](int64_t, MoeLayer& moe) { out = &moe.experts(); });
    return *out;
  }
  void give(const at::Tensor& h) { h_.copy_(h); }
  at::Tensor another_input() const { return at::randn(h_.sizes(), h_.options()); }
  void end_of_step() { model_->end_of_step(); }

  // Output, then the gradients of the input and of all parameters.
  Tensors run(const OutputHook* on_output = nullptr) {
    const at::Tensor h = h_.detach().clone().requires_grad_();
    Context context{.training = true};
    context.on_output = on_output;
    const UnitResult result = model_->forward(1, h, batch_, context);
    result.h.backward(grad_);
    Tensors out{result.h.detach(), h.grad()};
    model_->for_each_param(1, [&](const std::string&, Param& p) {
      if (p.value.grad().defined()) out.push_back(p.value.grad());
      p.value.mutable_grad().reset();
    });
    return out;
  }

  // Behind attention the experts' weights become zeros, as an optimizer writes, past PyTorch's
  // count: what was rounded by then is read as it was.
  Tensors run_with_weights_zeroed_behind_attention() {
    const Tensors weights{experts().w1.value.variable_data(), experts().w2.value.variable_data()};
    Tensors before;
    for (const at::Tensor& w : weights) before.push_back(w.clone());
    bool zeroed = false;
    const OutputHook hook = [&](const std::string& name, const at::Tensor&) {
      if (name != "layers.0.attention") return;
      wait_for_all_streams(device_);
      for (const at::Tensor& w : weights) w.zero_();
      zeroed = true;
    };
    const Tensors out = run(&hook);
    EXPECT_TRUE(zeroed) << "nobody showed attention's output";
    for (size_t i = 0; i < weights.size(); ++i) weights[i].copy_(before[i]);
    return out;
  }

 private:
  c10::Device device_;
  std::unique_ptr<Model> model_;
  Batch batch_;
  at::Tensor h_, grad_;
};

bool same_tensors(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!at::equal(a[i], b[i])) return false;
  }
  return true;
}

TEST(BlockParts, AttentionBeginsWhatRunsBesideItOnceAndBeforeItsOutput) {
  for (const char* form :
       {"bias: false", "mla: {kv_rank: 12, q_rank: 8, nope_dim: 8, rope_dim: 4, value_dim: 6}"}) {
    const ModelConfig config = one_layer(form);
    const LayerConfig layer = layer_config(config, 0);
    const BuildOptions options;
    const BlockParts parts({config, layer, options});
    parts.attention->for_each("",
                              [](const std::string& name, Param& p) { initialize(p, name, 5); });
    std::vector<std::string> calls;
    const OutputHook hook = [&](const std::string& name, const at::Tensor&) {
      calls.push_back(name);
    };
    Context context{.training = true};
    context.on_output = &hook;
    const Batch batch{.ids_BS = at::randint(61, {2, 8}, at::kLong)};
    const Packing packing;
    const BlockCall call = parts.call(batch, packing, context);
    const at::Tensor x = at::randn({16, 256});
    const at::Tensor y = parts.attend(x, call, [&] { calls.emplace_back("begin"); });
    EXPECT_EQ(calls, (std::vector<std::string>{"begin", "layers.0.attention"})) << form;
    EXPECT_TRUE(at::equal(parts.attend(x, call), y)) << form;
    EXPECT_EQ(calls.size(), 3U) << form;
  }
}

// The emulated path rounds where it reads.
TEST(Fp8Blocks, Q8_OnACpuLeaveToRoundAheadChangesNothing) {
  for (const char* kind : {"pre_norm", "post_norm", "parallel"}) {
    Fp8BlockRun block(c10::kCPU, "block: {kind: " + std::string(kind) + "}");
    const Tensors want = block.run();
    const Tensors zeroed = block.run_with_weights_zeroed_behind_attention();
    block.experts().allow_rounding_ahead(true);
    EXPECT_TRUE(same_tensors(block.run(), want)) << kind;
    EXPECT_TRUE(same_tensors(block.run_with_weights_zeroed_behind_attention(), zeroed)) << kind;
    EXPECT_FALSE(same_tensors(zeroed, want)) << kind;
  }
}

class Fp8BlocksOnHopper : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda()) GTEST_SKIP() << why_no_cuda();
    device_ = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
    if (capability_of(device_) != 90) GTEST_SKIP() << "no tensor core of this GPU multiplies bytes";
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    busy_ = c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device_, false);
    neighbor_ = at::randn({2048, 2048}, at::TensorOptions(device_).dtype(at::kFloat));
    wait_for_all_streams(device_);
  }
  void TearDown() override { at::globalContext().setDeterministicAlgorithms(false, false); }

  // Another stream has work for the next milliseconds.
  void keep_neighbor_busy() const {
    const c10::StreamGuard guard(*busy_);
    for (int i = 0; i < 4; ++i) neighbor_.mm(neighbor_);
  }

  c10::Device device_ = c10::kCPU;
  std::optional<c10::Stream> busy_;
  at::Tensor neighbor_;
};

TEST_F(Fp8BlocksOnHopper, Q8_WeightsAreRoundedBeforeAttentionEnds) {
  for (const char* kind : {"pre_norm", "post_norm"}) {
    Fp8BlockRun block(device_, "block: {kind: " + std::string(kind) + "}");
    const Tensors want = block.run();
    EXPECT_FALSE(same_tensors(block.run_with_weights_zeroed_behind_attention(), want)) << kind;
    block.experts().allow_rounding_ahead(true);
    EXPECT_TRUE(same_tensors(block.run_with_weights_zeroed_behind_attention(), want)) << kind;
    block.experts().keep_rounded_weights(true);
    EXPECT_TRUE(same_tensors(block.run_with_weights_zeroed_behind_attention(), want)) << kind;
    block.experts().keep_rounded_weights(false);
    EXPECT_TRUE(same_tensors(block.run(), want)) << kind << ": weights were not put back";
  }
}

// A parallel block has no attention before its experts, a layer that is recomputed runs twice.
TEST_F(Fp8BlocksOnHopper, Q8_RoundingAheadChangesNoBitBesideABusyStream) {
  for (const char* form : {"block: {kind: pre_norm}", "block: {kind: post_norm}",
                           "block: {kind: parallel}", "moe: {recompute: layer}"}) {
    Fp8BlockRun block(device_, form);
    const Tensors want = block.run();
    block.experts().allow_rounding_ahead(true);
    for (const bool kept : {false, true}) {
      for (int turn = 0; turn < kTurns; ++turn) {
        block.experts().keep_rounded_weights(kept);
        keep_neighbor_busy();
        EXPECT_TRUE(same_tensors(block.run(), want)) << form << kept << turn;
        EXPECT_TRUE(same_tensors(block.run(), want)) << form << kept << turn << ", second";
      }
      block.experts().keep_rounded_weights(false);
    }
  }
}

TEST_F(Fp8BlocksOnHopper, Q8_AGraphWithRoundingAheadHasTheBitsOfPlainCallsWithout) {
  for (const bool kept : {false, true}) {
    Fp8BlockRun block(device_, "block: {kind: pre_norm}");
    Tensors inputs;
    std::vector<Tensors> want;
    for (int i = 0; i < 3; ++i) {
      inputs.push_back(block.another_input());
      block.give(inputs.back());
      want.push_back(block.run());
    }
    block.experts().allow_rounding_ahead(true);
    const auto graphs = device_graphs(device_);
    graphs->on_stream([&] {
      for (int i = 0; i < 3; ++i) block.run();
    });
    block.end_of_step();
    Tensors first, second;
    const auto graph = graphs->capture([&] {
      block.experts().keep_rounded_weights(kept);
      first = block.run();
      second = block.run();
      block.experts().keep_rounded_weights(false);
    });
    block.end_of_step();
    for (int turn = 0; turn < kTurns; ++turn) {
      const auto i = static_cast<size_t>(turn) % inputs.size();
      block.give(inputs[i]);
      keep_neighbor_busy();
      graph->replay();
      EXPECT_TRUE(same_tensors(first, want[i])) << "kept " << kept << ", turn " << turn;
      EXPECT_TRUE(same_tensors(second, want[i])) << "kept " << kept << ", turn " << turn;
    }
    wait_for_all_streams(device_);
  }
}

}  // namespace
}  // namespace troupe
