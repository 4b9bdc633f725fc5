#include <gtest/gtest.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "troupe/train/recipe/foreign/convert_test.h"
#include "troupe/train/recipe/foreign/stage_texts.h"

namespace troupe {
namespace {

// A file as theirs are, of our own making.
std::string titan(const std::string& parallelism, const std::string& more = "") {
  return R"([job]
dump_folder = "./outputs/"
description = "a model"
[profiling]
enable_profiling = false
[metrics]
log_freq = 5
enable_tensorboard = true
[model]
name = "deepseek_v3"
flavor = "671B"
hf_assets_path = "./assets"
[optimizer]
name = "AdamW"
lr = 2.2e-4
eps = 1e-8
[lr_scheduler]
warmup_steps = 2_000
decay_ratio = 0.8  # of the steps
decay_type = "cosine"
min_lr_factor = 0.1
[training]
local_batch_size = 4
seq_len = 4096
max_norm = 1.0
steps = 10_000
dataset = "c4"
[activation_checkpoint]
mode = "full"
[compile]
enable = true
components = ["loss"]
[quantize.linear.float8]
filter_fqns = ["output"]
[checkpoint]
enable = true
interval = 500
async_mode = "async"
[parallelism]
)" + parallelism +
         "\n" + more;
}

Conversion converted(const std::string& parallelism, const std::string& more = "") {
  return convert_recipe(titan(parallelism, more), "run.toml", ForeignKind::kAuto);
}

// A value for all that a file of theirs leaves to its surroundings.
TEST(Torchtitan, AFileBecomesARecipe) {
  const Conversion out = converted(
      "data_parallel_shard_degree = 8\ntensor_parallel_degree = 2\npipeline_parallel_degree = 4\n"
      "pipeline_parallel_schedule = \"Interleaved1F1B\"\npipeline_parallel_microbatch_size = 1\n"
      "expert_parallel_degree = 16\nexpert_tensor_parallel_degree = 1\n"
      "context_parallel_degree = 1\nenable_async_tensor_parallel = false\n"
      "fsdp_reshard_after_forward = \"default\"");
  EXPECT_TRUE(out.refused.empty()) << out.refused[0];
  ASSERT_EQ(out.missing.size(), 1U);
  EXPECT_EQ(out.missing[0].find("data.train: training.dataset: c4: make token files"), 0U)
      << out.missing[0];
  const Recipe r = read_back(out);
  EXPECT_EQ(r.model.layers, 61);
  EXPECT_EQ(r.train.steps, 10000);
  EXPECT_EQ(r.train.global_batch, 32);  // 4 on each of 8
  EXPECT_EQ(r.train.micro_batch, 1);
  EXPECT_EQ(r.data.sequence, 4096);
  EXPECT_EQ(r.train.recompute, "1");
  EXPECT_EQ(r.checkpoint.dir, "./outputs/checkpoint");
  EXPECT_TRUE(r.checkpoint.background);
  EXPECT_TRUE(any(out.mapped, "lr_scheduler.decay_ratio: 0.8 -> train.schedule.decay: 8000"));
  EXPECT_TRUE(any(out.mapped, "lr_scheduler.decay_type: cosine -> train.schedule.tail: cosine"));
  EXPECT_TRUE(any(out.ignored, "quantize.linear.float8.filter_fqns: output: read by model.conv"));
  const ParallelConfig& p = r.parallel;
  EXPECT_EQ(p.tensor, 2);
  EXPECT_EQ(p.pipeline, 4);
  EXPECT_EQ(p.expert, 16);
  EXPECT_EQ(p.expert_tensor, 1);
  EXPECT_EQ(p.context, 1);
  EXPECT_EQ(p.data, 8);
  EXPECT_EQ(p.shard, ShardKind::kFull);
  EXPECT_EQ(p.shard_ranks, 0);
  EXPECT_FALSE(p.reshard);  // as FSDP beside a pipeline does by default
  EXPECT_EQ(p.schedule, PipelineOrder::kInterleaved);
  EXPECT_TRUE(layout_faults(p, {.world = 64, .experts = 256, .layers = 61, .mtp = 1}).empty() ||
              p.stages.empty());
}

ModelConfig model_of_flavor(const std::string& name, const std::string& flavor,
                            const std::string& sequence = "4096") {
  const Conversion out = convert_recipe("[model]\nname = \"" + name + "\"\nflavor = \"" + flavor +
                                            "\"\n[training]\nseq_len = " + sequence + "\n",
                                        "run.toml", ForeignKind::kTorchtitan);
  EXPECT_FALSE(any(out.missing, "model.preset")) << name << ' ' << flavor;
  EXPECT_TRUE(any(out.notes, "initial values are cut off normals there"));
  const ModelConfig model = read_back(out).model;
  EXPECT_NO_THROW(validate(model)) << out.recipe;
  return model;
}

// By its code of the last commit with TOML, whatever our preset of that name has.
TEST(Torchtitan, AFlavorHasTorchtitansOwnValues) {
  const ModelConfig m = model_of_flavor("deepseek_v3", "671B");
  const auto& router = std::get<SigmoidBiasRouting>(m.moe.router);
  EXPECT_EQ(router.bias_rate, 1e-3);
  EXPECT_TRUE(router.center);
  EXPECT_EQ(router.scale, 2.5);
  EXPECT_EQ(router.balance.seq_loss, 0);
  EXPECT_EQ(router.balance.aux_loss, 0);
  EXPECT_EQ(m.norm.kind, NormForm::kRms);
  EXPECT_EQ(m.norm.eps, 1e-5);
  EXPECT_EQ(m.mla->eps, 1e-5);
  EXPECT_EQ(m.mla->q_rank, 1536);
  EXPECT_EQ(m.init_std, 0.02);
  EXPECT_EQ(m.mtp.depth, 0);
  EXPECT_EQ(m.rope.scaling, RopeScaling::kNone);  // rows no longer than the first context
  EXPECT_EQ(m.max_positions, 4096);
  const RopeConfig longer = model_of_flavor("deepseek_v3", "671B", "8192").rope;
  EXPECT_EQ(longer.scaling, RopeScaling::kYarn);
  EXPECT_EQ(longer.factor, 40);
  EXPECT_EQ(longer.mscale_all_dim, 1);
  EXPECT_EQ(read_back(converted("")).data.documents, Documents::kEod);
  // 70B is stretched as 8B is.
  EXPECT_EQ(model_of_flavor("llama3", "70B").rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(model_of_flavor("qwen3", "235B-A22B").rope.theta, 5e6);
  const auto gpt = std::get<SigmoidBiasRouting>(model_of_flavor("gpt_oss", "20b").moe.router);
  EXPECT_EQ(gpt.score, IndependentScore::kSoftmax);
  EXPECT_EQ(gpt.bias_rate, 1e-3);
  EXPECT_EQ(gpt.balance.aux_loss, 0);
}

TEST(Torchtitan, EveryFlavorThatIsKnownIsAModel) {
  for (const auto& [name, flavors] : std::map<std::string, std::vector<std::string>>{
           {"llama3", {"debugmodel", "8B", "8B_flex", "405B"}},
           {"llama3_ft", {"debugmodel"}},
           {"qwen3", {"debugmodel", "0.6B", "1.7B", "4B", "8B", "14B", "32B", "debugmodel_moe"}},
           {"deepseek_v3", {"debugmodel", "16B", "236B"}},
           {"gpt_oss", {"debugmodel", "120b"}}}) {
    for (const std::string& flavor : flavors) model_of_flavor(name, flavor);
  }
}

// Its 16B moves a bias beside weights that no sum divides, which no router here does.
TEST(Torchtitan, ABalanceThatCannotBeSaidIsRefused) {
  const Conversion out = convert_recipe("[model]\nname = \"deepseek_v3\"\nflavor = \"16B\"\n",
                                        "run.toml", ForeignKind::kTorchtitan);
  EXPECT_TRUE(any(out.refused, "flavor 16B: a bias that moves by 1e-3 a step"));
  EXPECT_TRUE(any(convert_recipe("[model]\nname = \"qwen3\"\nflavor = \"30B-A3B\"\n", "run.toml",
                                 ForeignKind::kTorchtitan)
                      .notes,
                  "nothing balances the experts, as there"));
}

TEST(Torchtitan, DataParallelDegreesAreShardAndCopies) {
  const auto parallel = [](const std::string& text) { return read_back(converted(text)).parallel; };
  const std::string r = "data_parallel_replicate_degree = ", s = "data_parallel_shard_degree = ";
  ParallelConfig p = parallel(r + "2\n" + s + "4\ncontext_parallel_degree = 2");
  EXPECT_EQ(p.shard, ShardKind::kFull);
  EXPECT_EQ(p.shard_ranks, 8);  // with the context ranks
  EXPECT_EQ(p.data, 8);
  EXPECT_TRUE(p.reshard);
  const std::string balancer = "context_parallel_degree = 2\ncontext_parallel_load_balancer = ";
  EXPECT_EQ(parallel(balancer + "\"ptrr\"").context_dealing, Dealing::kDocuments);
  EXPECT_EQ(parallel(balancer + "\"headtail\"").context_dealing, Dealing::kZigzag);
  p = parallel(r + "4\n" + s + "1");
  EXPECT_EQ(p.shard, ShardKind::kNone);
  EXPECT_EQ(p.data, 4);
  p = parallel(r + "1\n" + s + "-1\nfsdp_reshard_after_forward = \"never\"");
  EXPECT_EQ(p.shard, ShardKind::kFull);
  EXPECT_EQ(p.data, 0);
  EXPECT_FALSE(p.reshard);
  EXPECT_TRUE(any(converted(r + "2\n" + s + "-1").missing, "parallel.shard_ranks: "));
  EXPECT_TRUE(any(converted(s + "-1").missing, "train.global_batch: training.local_batch_size: 4"));
}

TEST(Torchtitan, StagesAreTheirs) {
  EXPECT_EQ(stages_of_weights(6, 4, 1, 1), "Et|t*2|t*2|tL");
  EXPECT_EQ(stages_of_weights(7, 4, 1, 1), "Et*2|t*2|t*2|tL");
  EXPECT_EQ(stages_of_weights(1, 4, 1, 1), "");  // the last has fewer than none
  EXPECT_EQ(stages_of_points({"layers.2", "layers.5"}, 6), "Et*2|t*3|tL");
  EXPECT_EQ(stages_of_points({"layers.5", "layers.2"}, 6), "");
  EXPECT_EQ(stages_of_points({"layers.x"}, 6), "");
  const std::vector<std::vector<std::string>> modules = {
      {"tok_embeddings", "layers.0"}, {}, {"layers.1", "layers.2", "norm", "output"}};
  EXPECT_EQ(stages_of_modules(modules, 3), "Et||t*2L");
  EXPECT_EQ(stages_of_modules(modules, 4), "");
  const Conversion out = converted(
      "pipeline_parallel_degree = 8\npipeline_parallel_layers_per_stage = 8\n"
      "pipeline_parallel_first_stage_less_layers = 1\npipeline_parallel_schedule = \"1F1B\"");
  EXPECT_TRUE(out.refused.empty()) << out.refused[0];
  EXPECT_EQ(read_back(out).parallel.stages, "Et*7|t*8|t*8|t*8|t*8|t*8|t*8|t*6L");
  EXPECT_TRUE(any(out.ignored, "first_stage_less_layers: 1: parallel.stages has it"));
  const Conversion parts = convert_recipe(
      "[model]\nname = \"mine\"\n[parallelism]\npipeline_parallel_degree = 2\n"
      "module_fqns_per_model_part = [[\"tok_embeddings\", \"layers.0\"], [\"layers.1\", \"norm\", "
      "\"output\"]]\n",
      "run.toml", ForeignKind::kTorchtitan);
  EXPECT_EQ(read_back(parts).parallel.stages, "Et|tL");
  EXPECT_TRUE(any(parts.missing, "model.preset: model.name: mine, flavor debugmodel"));
}

TEST(Torchtitan, SchedulesAreOursByName) {
  const auto order = [](const std::string& name) {
    return read_back(converted("pipeline_parallel_degree = 2\npipeline_parallel_schedule = \"" +
                               name + '"'))
        .parallel.schedule;
  };
  EXPECT_EQ(order("GPipe"), PipelineOrder::kGpipe);
  EXPECT_EQ(order("1F1B"), PipelineOrder::k1f1b);
  EXPECT_EQ(order("Interleaved1F1B"), PipelineOrder::kInterleaved);
  EXPECT_EQ(order("InterleavedZeroBubble"), PipelineOrder::kZb1p);
  EXPECT_EQ(order("ZBVZeroBubble"), PipelineOrder::kZbv);
  const Conversion bad = converted(
      "pipeline_parallel_degree = 2\npipeline_parallel_schedule = \"Mine\"\n"
      "pipeline_parallel_schedule_csv = \"order.csv\"");
  EXPECT_TRUE(any(bad.refused, "pipeline_parallel_schedule: Mine: "));
  EXPECT_TRUE(any(bad.refused, "pipeline_parallel_schedule_csv: order.csv: an order from a file"));
  EXPECT_TRUE(
      any(converted("pipeline_parallel_degree = 1\npipeline_parallel_schedule = \"1F1B\"").ignored,
          "pipeline_parallel_schedule: 1F1B: one pipeline rank leaves it nothing to do"));
}

TEST(Torchtitan, AFileIsToldByItsTables) {
  EXPECT_EQ(foreign_kind("# a run\n[model]  # of theirs\nname = \"x\"\n"),
            ForeignKind::kTorchtitan);
  EXPECT_EQ(foreign_kind("if [ -n x ]; then\n[ -e y ]\nfi\n--num-layers 2"),
            ForeignKind::kMegatron);
}

TEST(Torchtitan, NothingIsDroppedInSilence) {
  const Conversion out = converted(
      "enable_sequence_parallel = false\nmade_up_degree = 3",
      "[fault_tolerance]\nenable = true\nsync_steps = 10\n[experimental]\ncustom_import = \"x\"\n"
      "[comm]\ntrain_timeout_seconds = 15\n[debug]\nmoe_force_load_balance = true\nseed = 7\n");
  EXPECT_TRUE(any(out.refused,
                  "run.toml:40: E2005 parallelism.enable_sequence_parallel: false: "
                  "ranks that share matrices always share the tokens"));
  EXPECT_TRUE(any(out.refused, "E2003 parallelism.made_up_degree: 3: not a key"));
  EXPECT_TRUE(any(out.refused, "fault_tolerance.enable: true: "));
  EXPECT_TRUE(any(out.refused, "experimental.custom_import: x: "));
  const Recipe r = read_back(out);
  EXPECT_EQ(r.run.hang_timeout.ns, 15'000'000'000);
  EXPECT_EQ(r.train.seed, 7U);
  EXPECT_TRUE(any(out.mapped, "moe_force_load_balance: true -> model.moe.router.force: uniform"));
  EXPECT_TRUE(
      any(convert_recipe("[model]\nconverters = [\"float8\"]\n", "run.toml", ForeignKind::kAuto)
              .refused,
          "model.converters: float8: "));
}

}  // namespace
}  // namespace troupe
