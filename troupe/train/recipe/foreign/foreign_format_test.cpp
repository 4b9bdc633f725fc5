#include "troupe/train/recipe/foreign/foreign_format.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "troupe/core/check.h"
#include "troupe/train/recipe/foreign/convert_test.h"

namespace troupe {
namespace {

std::string fault_of_text(const std::string& text, ForeignKind kind = ForeignKind::kAuto,
                          const std::string& file = "f") {
  try {
    convert_recipe(text, file, kind);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(ForeignFormat, WhatIsNotReadIsNamedAndMadeNoRecipeOf) {
  const std::pair<const char*, const char*> kCases[] = {
      {"# a config\nfrom torchtitan.config import JobConfig\n", "torchtitan's Python"},
      {"\"\"\"A run.\"\"\"\nfrom olmo_core.train import TrainerConfig\n", "OLMo-core's Python"},
      {"import transformers\nargs = TrainingArguments(output_dir='x')\n", "Python"},
      {"recipe: X\nstep_scheduler:\n  max_steps: 9\nmodel:\n  _target_: nemo_automodel.x\n",
       "NeMo Automodel's YAML"},
      {"trainer:\n  devices: 8\nmodel:\n  d_model: 64\n  name: x\n", "NeMo's YAML"},
      {"base_model: x\ndatasets:\n- path: y\n", "Axolotl's YAML"},
      {"{\n # c\n \"pipe_parallel_size\": 1, \"num_layers\": 12, \"hidden_size\": 768,\n"
       " \"zero_optimization\": {\"stage\": 1}}",
       "GPT-NeoX's YAML"},
      {"model:\n  model_config:\n    hidden_size: 64\n", "nanotron's YAML"},
      {"{\"architectures\": [\"X\"], \"model_type\": \"llama\", \"hidden_size\": 64}",
       "a model's config.json: `troupe import`"}};
  for (const auto& [text, name] : kCases) {
    for (const ForeignKind kind : {ForeignKind::kAuto, ForeignKind::kFoundry}) {
      const std::string said = fault_of_text(text, kind);
      EXPECT_NE(said.find("E2005 is "), std::string::npos) << text << said;
      EXPECT_NE(said.find(name), std::string::npos) << text << said;
    }
  }
  const std::string unknown = "color: red\nsizes:\n  a: 1\n";
  EXPECT_NE(fault_of_text(unknown).find("of none of the programs"), std::string::npos);
  EXPECT_EQ(foreign_kind(unknown), ForeignKind::kAuto);
}

constexpr char kModelArgs[] = R"(ENV_VARS:
  NCCL_DEBUG: VERSION
MODEL_ARGS:
  --tensor-model-parallel-size: ${TP}
  --sequence-parallel: true
  --finetune: false
  --num-layers: 4
  --hidden-size: 96
  --num-attention-heads: 4
  --seq-length: 64
  --micro-batch-size: 2
  --global-batch-size: 4
  --train-iters: 100
  --lr: 1.0e-3
  --mock-data: true
  --tokenizer-type: NullTokenizer
  --vocab-size: 511
  --num-experts: 8
  --moe-layer-freq: ([0]*1+[1]*3)
  --split: "'99,1,0'"
  --recompute-granularity: selective
  --recompute-modules: moe_act layernorm
  --save: ${OUT}/checkpoints
)";

TEST(ForeignFormat, MegatronsYamlIsItsFlags) {
  EXPECT_EQ(foreign_kind(kModelArgs), ForeignKind::kMegatron);
  const Conversion out =
      convert_recipe(kModelArgs, "m.yaml", ForeignKind::kAuto, {{"TP", "2"}, {"OUT", "/out"}});
  EXPECT_EQ(out.refused, std::vector<std::string>());
  EXPECT_EQ(out.missing, std::vector<std::string>());
  EXPECT_EQ(out.faults, std::vector<std::string>());
  const Recipe r = read_back(out);
  EXPECT_EQ(r.parallel.tensor, 2);
  EXPECT_EQ(r.model.moe.layers, "[0]*1+[1]*3");
  EXPECT_EQ(r.checkpoint.dir, "/out/checkpoints");
  EXPECT_TRUE(any(out.ignored, "ENV_VARS"));
  EXPECT_FALSE(any(out.mapped, "finetune"));
  const Conversion open = convert_recipe(kModelArgs, "m.yaml", ForeignKind::kAuto);
  EXPECT_TRUE(any(open.missing,
                  "parallel.tensor: --tensor-model-parallel-size ${TP} is given from "
                  "outside the file: --variable NAME=VALUE"));
  EXPECT_EQ(open.refused, std::vector<std::string>());
}

// Megatron-LM's own test cases have such a file; PyYAML takes the last of the two.
TEST(ForeignFormat, MegatronsYamlMayNameAFlagTwice) {
  const std::string twice = "MODEL_ARGS:\n  --num-layers: 2\n  --swiglu: true\n  --num-layers: 3\n";
  EXPECT_EQ(foreign_kind(twice), ForeignKind::kMegatron);
  const Conversion out = convert_recipe(twice, "m.yaml", ForeignKind::kAuto);
  EXPECT_TRUE(any(out.mapped, "--num-layers 3 -> model.layers: 3"));
  EXPECT_FALSE(any(out.mapped, "--num-layers 2"));
}

// Its settings and the command's over them, from the file beside it; never from above its checkout.
TEST(ForeignFormat, AnMclisCommandIsFollowedToItsYaml) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "troupe_mcli";
  std::filesystem::create_directories(folder / "scripts/train/yamls");
  std::filesystem::create_directories(folder / "mcli");
  std::ofstream(folder / "scripts/train/yamls/a.yaml")
      << "max_seq_len: 64\nmodel: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 2, "
         "max_seq_len: 64, vocab_size: 96}\nmax_duration: 10ba\nglobal_train_batch_size: 4\n"
         "optimizer: {name: decoupled_adamw, lr: 1.0e-3}\nscheduler: {name: constant_with_warmup, "
         "t_warmup: 0ba}\nprecision: amp_bf16\n";
  const auto mcli = [&](const std::string& command) {
    return convert_recipe("command: |\n  cd llm-foundry/scripts\n  python prep.py --out d\n  " +
                              command + "\nimage: i\nparameters: {}\n",
                          (folder / "mcli/m.yaml").string(), ForeignKind::kAuto);
  };
  const Conversion out =
      mcli("composer train/train.py train/yamls/a.yaml max_duration=7ba model.n_layers=3");
  const Recipe r = read_back(out);
  EXPECT_EQ(r.train.steps, 7);
  EXPECT_EQ(r.model.layers, 3);
  EXPECT_EQ(r.model.width, 64);
  EXPECT_TRUE(any(out.notes, "scripts/train/yamls/a.yaml"));
  for (const char* command :
       {"composer train/train.py train/yamls/none.yaml", "composer train/train.py ../../x.yaml",
        "composer train/train.py /etc/x.yaml", "composer eval/eval.py train/yamls/a.yaml"}) {
    try {
      mcli(command);
      ADD_FAILURE() << command;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("E2005 launches"), std::string::npos) << e.what();
    }
  }
  std::filesystem::remove_all(folder);
  const Conversion own = convert_recipe(
      "command: composer train/train.py /mnt/config/parameters.yaml\nparameters:\n  max_duration: "
      "9ba\n"
      "  model: {name: mpt_causal_lm, d_model: 64, n_heads: 4, n_layers: 2, max_seq_len: 64, "
      "vocab_size: 96}\n",
      "m.yaml", ForeignKind::kAuto);
  EXPECT_EQ(read_back(own).train.steps, 9);
}

TEST(ForeignFormat, AnotherScriptThatIsStartedIsNamed) {
  EXPECT_NE(fault_of_text("PP=8 bash sbatch_benchmarking.sh --num-layers 4")
                .find("f:1: E2005 starts another script, sbatch_benchmarking.sh"),
            std::string::npos);
}

Conversion converted_script(const std::string& text) {
  return convert_recipe(text, "run.sh", ForeignKind::kMegatron);
}

// The conversion reports what `check` would find.
TEST(ForeignFormat, TheRecipeIsTriedAsItIsWritten) {
  EXPECT_EQ(converted_script(arguments("--swiglu --ffn-hidden-size 128")).faults,
            std::vector<std::string>());
  const Conversion odd =
      converted_script(arguments("--num-experts 8 --moe-router-topk 9 "
                                 "--moe-router-pre-softmax"));
  EXPECT_EQ(odd.refused, std::vector<std::string>());
  EXPECT_TRUE(any(odd.faults, "top_k"));
  // A field that is still to be filled in is no fault yet.
  const Conversion open = converted_script(
      "python pretrain_gpt.py --num-layers 2 --hidden-size 64 "
      "--num-attention-heads 4 --seq-length 32 --swiglu");
  EXPECT_EQ(open.faults, std::vector<std::string>());
  EXPECT_FALSE(open.missing.empty());
}

// A shell makes nothing of a word that is a variable without a value; from outside it may have one.
TEST(ForeignFormat, AWordThatTheScriptLeavesOpenIsNoSecondValue) {
  const Conversion out = converted_script(arguments("--num-experts 8 ${MORE_OPTIONS}"));
  EXPECT_EQ(out.refused, std::vector<std::string>());
  EXPECT_TRUE(any(out.notes, "${MORE_OPTIONS} is set nowhere: no word, as in a shell"));
  EXPECT_EQ(out.missing, std::vector<std::string>());
  const Conversion list =
      converted_script("torchrun pretrain_gpt.py ${ARGS[@]} " + arguments("$@"));
  EXPECT_EQ(list.refused, std::vector<std::string>());
  EXPECT_TRUE(any(list.notes, "${ARGS[@]} is set nowhere"));
  EXPECT_TRUE(any(converted_script(arguments("--num-experts 8 ${A}9")).refused, "takes one value"));
}

}  // namespace
}  // namespace troupe
