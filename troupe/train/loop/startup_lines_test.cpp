#include "troupe/train/loop/startup_lines.h"

#include <gtest/gtest.h>

#include "troupe/core/config/config.h"

namespace troupe {
namespace {

std::string line_for(const std::string& router, int64_t experts = 4) {
  ModelConfig model;
  model.layers = 2;
  model.ffn = 32;
  model.moe.experts = experts;
  model.moe.ffn.hidden = 32;
  read_config(parse_yaml(router, "test"), model.moe.router);
  return balance_line(model);
}

// Row 210: nobody trains without a balance and does not know it.
TEST(StartLines, SayWhatBalancesTheExpertsOrThatNothingDoes) {
  EXPECT_EQ(line_for("{}"), "balance: aux_loss 0.01");
  EXPECT_EQ(line_for("{balance: {z_loss: 0.001, seq_loss: 0.02}}"),
            "balance: aux_loss 0.01, seq_loss 0.02, z_loss 0.001");
  const std::string none = line_for("{balance: {aux_loss: 0}}");
  EXPECT_TRUE(none.starts_with("balance: none: no load balancing is on")) << none;
  EXPECT_NE(none.find("model.moe.router.balance.aux_loss=0.01"), std::string::npos) << none;
  const std::string only_z = line_for("{balance: {aux_loss: 0, z_loss: 0.001}}");
  EXPECT_TRUE(only_z.starts_with("balance: none (z_loss 0.001): no load")) << only_z;
}

TEST(StartLines, RoutersThatBalanceByThemselvesSayHow) {
  EXPECT_EQ(line_for("{kind: sigmoid_bias}"), "balance: a bias that moves by 0.001");
  EXPECT_TRUE(line_for("{kind: sigmoid_bias, bias_rate: 0}").starts_with("balance: none"));
  EXPECT_EQ(line_for("{kind: expert_choice}"), "balance: by the router expert_choice");
  EXPECT_EQ(line_for("{kind: sinkhorn}"), "balance: by the router sinkhorn");
  EXPECT_EQ(line_for("{}", 0), "");  // dense
}

TEST(StartLines, R3_ForcedRoutingIsWarnedOf) {
  ModelConfig model;
  model.layers = 2;
  model.moe.experts = 4;
  EXPECT_EQ(forced_line(model), "");
  read_config(parse_yaml("{force: random}", "test"), model.moe.router);
  EXPECT_TRUE(forced_line(model).starts_with("model.moe.router.force is random"))
      << forced_line(model);
  model.moe.experts = 0;
  EXPECT_EQ(forced_line(model), "");
}

TEST(StartLines, SayWhoseAttentionAGpuHas) {
  ModelConfig model;
  model.layers = 2;
  EXPECT_EQ(attention_line(model, Precision::kBf16, 512, {}, c10::kCPU), "");
  model.attn_dropout = 0.1;
  EXPECT_EQ(attention_line(model, Precision::kBf16, 512, {}, {c10::kCUDA, 0}),
            "attention: products and a softmax, for model.attn_dropout");
}

TEST(StartLines, SayWhetherStepsAreReplayedAndWhyNot) {
  TrainConfig train;
  EXPECT_EQ(graph_line(train, ""), "");
  train.cuda_graph = true;
  EXPECT_EQ(graph_line(train, ""),
            "cuda graph: forward, backward and update of a step are captured after 3 eager steps, "
            "then replayed");
  train.optimizer = MuonConfig();
  EXPECT_EQ(graph_line(train, ""),
            "cuda graph: forward and backward of a step are captured after 3 eager steps, then "
            "replayed; the update of muon stays eager");
  EXPECT_EQ(graph_line(train, "on a cpu there are none"),
            "cuda graph: none, every step is eager: on a cpu there are none");
}

TEST(StartLines, SayWhatIsOffloadedAndThatACpuSavesNothing) {
  TrainConfig train;
  EXPECT_EQ(offload_line(train, c10::kCPU), "");
  train.offload_layers = 1;
  EXPECT_EQ(offload_line(train, c10::Device(c10::kCUDA, 0)),
            "activation offload: what the first layer keeps for backward waits in pinned host "
            "memory, copied beside computation");
  train.offload_layers = 2;
  EXPECT_NE(offload_line(train, c10::kCPU).find("the first 2 layers; on a cpu it copies from host"),
            std::string::npos);
  EXPECT_EQ(offloaded_line(int64_t{3} << 19),
            "activation offload: 1.5 MiB went to host memory and back in the step");
  EXPECT_EQ(state_offload_line(train, c10::kCPU), "");
  train.offload_state = true;
  EXPECT_NE(state_offload_line(train, c10::kCPU).find("saves nothing"), std::string::npos);
  EXPECT_NE(state_offload_line(train, c10::Device(c10::kCUDA, 0)).find("pinned host memory"),
            std::string::npos);
  EXPECT_NE(offloaded_line(0).find("train.offload_layers has no effect"), std::string::npos);
}

TEST(StartLines, ContextRanksHaveChunksOfRows) {
  ParallelConfig parallel;
  EXPECT_EQ(longest_segment(4096, parallel), (AttentionSegment{0, 4096, 0, 0}));
  parallel.context = 4;
  EXPECT_EQ(longest_segment(4096, parallel), (AttentionSegment{0, 512, 0, 3584}));
  parallel.context_dealing = Dealing::kDocuments;
  EXPECT_EQ(longest_segment(4096, parallel), (AttentionSegment{0, 1024, 0, 3072}));
  parallel.context_method = ContextMethod::kRing;
  EXPECT_EQ(longest_segment(4096, parallel), (AttentionSegment{0, 1024, 0, 0}));
  parallel.context_method = ContextMethod::kHeads;
  EXPECT_EQ(longest_segment(4096, parallel), (AttentionSegment{0, 4096, 0, 0}));
}

TEST(StartLines, UpdatesInBackwardAreToldWithTheirClipping) {
  TrainConfig train;
  EXPECT_EQ(update_line(train, 1), "");
  train.clip_by = ClipBy::kLastStep;
  EXPECT_NE(update_line(train, 1).find("the norm of the step before"), std::string::npos);
  train.update = UpdatePlace::kInBackward;
  EXPECT_NE(update_line(train, 1).find("clipped by the norm of the step before"),
            std::string::npos);
  EXPECT_EQ(update_line(train, 1).find("saves no memory"), std::string::npos);
  EXPECT_NE(update_line(train, 4).find("4 microbatches, which saves no memory"), std::string::npos);
  train.clip = 0;
  EXPECT_NE(update_line(train, 1).find("gradients are not clipped"), std::string::npos);
}

}  // namespace
}  // namespace troupe
