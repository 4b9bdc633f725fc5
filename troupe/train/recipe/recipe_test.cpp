#include "troupe/train/recipe/recipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/config_describe.h"
#include "troupe/core/file/publish.h"
#include "troupe/nn/config/costs.h"
#include "troupe/testing/cpu_seconds.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

constexpr std::string_view kNano =
    "model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64,\n"
    "        moe: {experts: 4, top_k: 2, hidden: 64}}\n"
    "data: {train: [{kind: mock}], sequence: 32}\n"
    "train: {global_batch: 8, steps: 20}\n"
    "checkpoint: {dir: nano}\n";

struct Loaded {
  Recipe recipe;
  Sources sources;
};

Loaded loaded(const std::vector<std::string>& sets = {}, std::string_view text = kNano) {
  const testing::TemporaryFolder folder;
  Fs fs;
  publish_file(fs, folder / "nano.yaml", text);
  Loaded out;
  out.recipe = load_recipe(folder / "nano.yaml", sets, out.sources);
  return out;
}

std::vector<std::string> faults(const std::vector<std::string>& sets) {
  const Loaded l = loaded(sets);
  std::vector<std::string> out;
  try {
    validate(l.recipe, l.sources);
  } catch (const Error& error) {
    std::istringstream lines(error.what());
    for (std::string line; std::getline(lines, line);) out.push_back(line);
  }
  return out;
}

bool one_says(const std::vector<std::string>& lines, const std::string& what) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& line) { return line.find(what) != std::string::npos; });
}

// Every whole number that a recipe can hold, each made one that must be looked at before anything
// is computed, made or repeated with it.
TEST(Recipe, F153_NoNumberOfAnyFieldHangsOrIsAFaultOfTheProgram) {
  const std::vector<std::vector<std::string>> bases = {
      {},
      {"train.micro_batch=4", "train.batch_ramp={start: 4, increment: 4, samples: 64}",
       "model.mtp={depth: 1}", "model.moe.shared={experts: 1}", "model.window=8"},
      {"model.mla={}", "train.global_batch=0", "train.global_batch_tokens=256", "train.steps=0",
       "train.tokens=5120"}};
  int64_t tried = 0;
  for (const std::vector<std::string>& sets : bases) {
    const Recipe base = loaded(sets).recipe;
    ASSERT_NO_THROW(validate(base, {}));
    for (const auto& [path, text] : flatten(base)) {
      int64_t was = 0;
      if (!from_text(text, was)) continue;
      for (const int64_t number :
           {std::numeric_limits<int64_t>::max(), -std::numeric_limits<int64_t>::max(),
            int64_t{1} << 62, int64_t{1} << 53, int64_t{1} << 40, int64_t{1} << 31,
            int64_t{1} << 24, int64_t{1} << 16, int64_t{10'000}, int64_t{-1}, int64_t{0}}) {
        const double begin = cpu_seconds();
        Recipe recipe = base;
        try {
          read_config(override_yaml(path + '=' + std::to_string(number)), recipe);
          validate(recipe, {});
          EXPECT_GT(plan_of(recipe).run.tokens, 0) << path << ' ' << number;
          EXPECT_GT(costs_of(recipe.model).params(), 0) << path << ' ' << number;
        } catch (const Error& error) {
          EXPECT_EQ(error.exit_class(), ExitClass::kUsage) << path << ' ' << error.what();
        }
        EXPECT_LT(cpu_seconds() - begin, 10) << path << ' ' << number;
        ++tried;
      }
    }
  }
  EXPECT_GT(tried, 2000);
  EXPECT_TRUE(one_says(faults({"model.layers=9223372036854775807"}),
                       "model.layers: is 9223372036854775807; at most 1024 is taken"));
}

TEST(Recipe, NanoIsSoundAndSaysWhatFollowsFromIt) {
  EXPECT_EQ(faults({}), std::vector<std::string>{});
  const RunPlan plan = plan_of(loaded().recipe);
  EXPECT_EQ(plan.run, (Position{20, 160, 5120}));
  EXPECT_EQ(plan.micro_batch, 8);
}

TEST(Recipe, F83_ThePrintedRecipeReadsBackTheSame) {
  const Recipe recipe = loaded({"train.optimizer.kind=muon", "train.schedule.kind=wsd"}).recipe;
  std::ostringstream os;
  print_config(os, recipe);
  Recipe again;
  read_config(parse_yaml(os.str(), "printed"), again);
  EXPECT_TRUE(same(recipe, again));
}

// Optimizers of whole matrices on ranks: replicas and whole experts, and no part of a matrix.
TEST(Recipe, WhatCutsMatricesIsRefusedByNameOfTheOptimizer) {
  for (const std::string shard : {"none", "zero1", "full"}) {  // muon gathers what it needs
    EXPECT_EQ(faults({"train.optimizer.kind=muon", "parallel.shard=" + shard}),
              std::vector<std::string>{});
  }
  for (const std::string kind : {"adafactor", "soap"}) {
    for (const std::string shard : {"zero1", "full"}) {
      const auto found = faults({"train.optimizer.kind=" + kind, "parallel.shard=" + shard});
      EXPECT_TRUE(
          one_says(found, "parallel.shard: " + shard + " shards optimizer state, which " + kind));
    }
    EXPECT_EQ(faults({"train.optimizer.kind=" + kind, "parallel.shard=none"}),
              std::vector<std::string>{});
  }
  const LayoutNeeds needs{.world = 4, .experts = 2, .whole_state = true};
  ParallelConfig config;
  config.expert = 4;
  EXPECT_TRUE(one_says(layout_faults(config, needs), "4 ranks cut the matrices of 2 experts"));
  config.expert = 2;
  EXPECT_TRUE(layout_faults(config, needs).empty());
  config.expert = 0;
  EXPECT_TRUE(layout_faults(config, needs).empty());
}

TEST(Recipe, Q4_Q8_33_RowsIn8BitsAndTheBitsOfOneRankExcludeEachOther) {
  for (const std::string wire : {"int8", "fp8"}) {
    EXPECT_EQ(faults({"parallel.wire=" + wire}), std::vector<std::string>{});
    EXPECT_TRUE(one_says(faults({"parallel.wire=" + wire, "parallel.dispatch=exact"}),
                         "E2005 parallel.wire: " + wire +
                             " rounds the rows that go to experts, and parallel.dispatch exact "
                             "gives the bits of one rank: take wire native, or dispatch fast"));
  }
  EXPECT_EQ(faults({"parallel.wire=native", "parallel.dispatch=exact"}),
            std::vector<std::string>{});
  EXPECT_THROW(loaded({"parallel.wire=fp4"}), Error);
}

// e4m3 makes 65536 of what is above 63488.
TEST(Recipe, Q8_33_RowsInFp8AreNotThoseOfFp16) {
  EXPECT_EQ(faults({"parallel.wire=int8", "train.precision=fp16"}), std::vector<std::string>{});
  EXPECT_EQ(faults({"parallel.wire=fp8", "train.precision=bf16"}), std::vector<std::string>{});
  EXPECT_TRUE(one_says(faults({"parallel.wire=fp8", "train.precision=fp16"}),
                       "E2005 parallel.wire: fp8 may round a row's largest value to one that "
                       "train.precision fp16 does not hold: take wire int8 or native"));
}

TEST(Recipe, Q8_21_OneScaleATensorDoesNotGiveTheBitsOfOneRank) {
  const std::vector<std::string> sets = {"model.width=128", "model.moe.hidden=128",
                                         "train.fp8.recipe=tensor"};
  EXPECT_EQ(faults(sets), std::vector<std::string>{});
  std::vector<std::string> exact = sets;
  exact.emplace_back("parallel.dispatch=exact");
  EXPECT_TRUE(one_says(faults(exact), "E2005 train.fp8.recipe: tensor makes a row's bits depend"));
  exact[2] = "train.fp8.recipe=delayed";
  EXPECT_TRUE(one_says(faults(exact), "E2005 train.fp8.recipe: delayed makes a row's bits depend"));
  exact[2] = "train.fp8.recipe=block";
  EXPECT_EQ(faults(exact), std::vector<std::string>{});
}

TEST(Recipe, OV10_NoCollectiveTakesMoreBlocksThanNcclHas) {
  EXPECT_EQ(faults({"parallel.comm_blocks=64", "parallel.comm_priority=normal"}),
            std::vector<std::string>{});
  EXPECT_TRUE(one_says(faults({"parallel.comm_blocks=65"}),
                       "E2005 parallel.comm_blocks: 65 SMs for one collective; NCCL takes at most "
                       "64; 0 leaves it to NCCL"));
  EXPECT_TRUE(one_says(faults({"parallel.comm_blocks=-1"}),
                       "E2005 parallel.comm_blocks: must not be negative"));
}

TEST(Recipe, TheBackendFitsTheDeviceAndTheDispatcher) {
  EXPECT_EQ(faults({"parallel.backend=gloo", "run.device=cuda"}), std::vector<std::string>{});
  EXPECT_EQ(faults({"parallel.backend=nccl"}), std::vector<std::string>{});
  EXPECT_TRUE(one_says(faults({"parallel.backend=nccl", "run.device=cpu"}),
                       "E2005 parallel.backend: nccl moves tensors between GPUs, and run.device is "
                       "cpu: take auto or gloo"));
  const std::string symmetric = "parallel.dispatcher.kind=symmetric";
  EXPECT_TRUE(one_says(faults({"parallel.backend=gloo", symmetric}),
                       "E2005 parallel.dispatcher: symmetric reads the memory of other GPUs"));
  EXPECT_EQ(faults({"parallel.backend=gloo", symmetric, "run.device=cpu"}),
            std::vector<std::string>{});
  EXPECT_THROW(loaded({"parallel.backend=mpi"}), Error);
}

TEST(Recipe, Fp64TakesNothingThatRounds) {
  const std::vector<std::string> fp64 = {"train.precision=fp64", "run.device=cpu"};
  const auto with = [&](const std::string& set) {
    std::vector<std::string> sets = fp64;
    sets.push_back(set);
    return faults(sets);
  };
  EXPECT_EQ(faults(fp64), std::vector<std::string>{});
  EXPECT_EQ(with("train.optimizer.kind=lion"), std::vector<std::string>{});
  EXPECT_TRUE(one_says(with("run.device=auto"), "fp64 computes on the CPU alone: set run.device"));
  EXPECT_TRUE(one_says(with("train.optimizer.kind=muon"), "muon computes in f32"));
  EXPECT_TRUE(one_says(with("train.optimizer.moments=bf16"), "train.optimizer.moments: bf16"));
  EXPECT_TRUE(one_says(with("train.fp8={}"), "train.fp8: goes with train.precision bf16 or auto"));
}

TEST(Recipe, F79_AllProblemsAreToldAtOnceWithTheirPlaces) {
  const auto found = faults({"train.micro_batch=3", "train.clip=-1", "train.schedule.warmup=30",
                             "parallel.pipeline=64", "data.sequence=128", "eval.batches=-1",
                             "train.optimizer.lr=-1", "model.moe.top_k=5"});
  EXPECT_TRUE(one_says(found,
                       "train.micro_batch: 3 does not divide the global batch of 8 "
                       "sequences; near: 2, 4"));
  EXPECT_TRUE(one_says(faults({"model.heads=5"}),
                       "heads 5 does not divide width 32 in layer 0; "
                       "near: 4, 8"));
  EXPECT_TRUE(one_says(faults({"model.kv_heads=3"}), "kv_heads must divide heads; near: 2, 4"));
  EXPECT_TRUE(one_says(found, "train.clip"));
  EXPECT_TRUE(
      one_says(found, "parallel.pipeline: 64 stages for 2 layers, embedding and head: at most 4"));
  EXPECT_TRUE(one_says(found, "data.sequence: 128 is longer than the model's 64 positions"));
  EXPECT_TRUE(one_says(found, "eval.batches"));
  EXPECT_TRUE(one_says(found, "lr -1 must not be negative"));
  EXPECT_TRUE(one_says(found, "top_k"));
  EXPECT_TRUE(one_says(found, "--set train.micro_batch=3"));  // its place
  EXPECT_TRUE(one_says(faults({"train.schedule.warmup=30"}), "warmup 30 is longer"));
  EXPECT_TRUE(one_says(faults({"train.recompute='[1,0,1]'"}), "[1,0,1]"));
}

TEST(Recipe, BatchIsInTokensOrSequencesAndNotBoth) {
  EXPECT_TRUE(one_says(faults({"train.global_batch_tokens=256"}), "either global_batch_tokens"));
  EXPECT_TRUE(one_says(faults({"train.global_batch=0"}), "either global_batch_tokens"));
  EXPECT_TRUE(one_says(faults({"train.global_batch=0", "train.global_batch_tokens=100"}),
                       "100 is not a multiple of data.sequence 32. Near: 96, 128"));
  const Recipe tokens = loaded({"train.global_batch=0", "train.global_batch_tokens=256"}).recipe;
  EXPECT_EQ(plan_of(tokens).batch, 8);
}

TEST(Recipe, TheMicroBatchDividesEveryBatchOfARamp) {
  const Recipe recipe =
      loaded({"train.batch_ramp={start: 2, increment: 2, samples: 24}", "data.sequence=32"}).recipe;
  EXPECT_EQ(plan_of(recipe).micro_batch, 2);
  EXPECT_EQ(plan_of(recipe).run.steps, 20);
  EXPECT_TRUE(one_says(faults({"train.batch_ramp={start: 3, increment: 2, samples: 24}"}),
                       "to the global batch 8: it cannot"));
  const Recipe stages =
      loaded({"train.batch_ramp={stages: [{batch: 2, until: 8}, {batch: 4, until: 24}]}"}).recipe;
  EXPECT_EQ(plan_of(stages).micro_batch, 2);
  EXPECT_EQ(plan_of(stages).run, (Position{20, 8 + 16 + 12 * 8, 120 * 32}));
}

// The table of options that exclude each other: each pair is refused, and the line names both.
TEST(Recipe, F80_WhatExcludesEachOtherIsRefusedAndNeverLeftOut) {
  const struct {
    std::vector<std::string> sets;
    std::vector<std::string> names;
  } pairs[] = {
      {{"train.global_batch_tokens=256"}, {"global_batch_tokens", "global_batch ("}},
      {{"train.tokens=5120"}, {"train.tokens", "steps"}},
      {{"train.batch_ramp={start: 2, increment: 2, samples: 24, stages: [{batch: 2, until: 4}]}"},
       {"train.batch_ramp", "stages", "start"}},
      {{"train.spike={skip: true, sigmas: 0}"}, {"train.spike.skip", "sigmas"}},
      {{"checkpoint.when_busy=skip", "checkpoint.background=false"}, {"when_busy", "background"}},
      {{"checkpoint.keep_best=1"}, {"keep_best", "eval.every", "data.valid"}},
      {{"model.mtp.weight=0.5"}, {"mtp.weight", "mtp.depth"}},
      {{"model.moe.shared.hidden=64"}, {"shared.hidden", "shared.experts"}},
      {{"parallel.shard=none", "parallel.shard_ranks=2"}, {"shard_ranks", "parallel.shard"}},
      {{"eval.prompts=[a]"}, {"eval.prompts", "data.tokenizer"}},
      {{"log.every=5%"}, {"log", "percent"}},
      {{"run.check_replicas=5%"}, {"run.check_replicas", "percent"}},
      {{"data.stages=[{train: [{kind: mock}]}]"}, {"data.stages", "data.train"}},
      {{"data.split='9,1'", "data.valid=[{kind: mock}]"}, {"data.split", "data.valid"}},
      {{"data.packing=best_fit"}, {"best_fit", "data.documents"}},
      {{"data.packing=best_fit", "data.order=megatron", "data.documents=sequences"},
       {"best_fit", "data.order"}},
      {{"model.norm.bias=true"}, {"norm.bias", "norm.kind"}},
      {{"model.rope.factor=4"}, {"rope.factor", "rope.scaling"}},
      {{"model.mla={}", "model.positions=learned"}, {"mla", "positions"}},
      {{"model.mla={}", "model.sinks=true"}, {"mla", "sinks"}},
      {{"model.mla={}", "model.kv_heads=2"}, {"mla", "kv_heads"}},
      {{"model.mla={}", "model.bias=true"}, {"mla", "biases"}},
      {{"model.moe.return_bias=true"}, {"return_bias", "output_bias"}},
      {{"model.moe.score_on_input=true"}, {"score_on_input", "top_k"}},
      {{"model.moe.impl=loop", "model.moe.quantize.inputs=8"}, {"quantize", "impl"}},
      {{"train.schedule.warmup=30"}, {"warmup", "longer"}},
      {{"data.sequence=128"}, {"data.sequence", "max_positions"}},
  };
  for (const auto& [sets, names] : pairs) {
    const std::vector<std::string> lines = faults(sets);
    EXPECT_TRUE(std::ranges::any_of(lines,
                                    [&names = names](const std::string& line) {
                                      return std::ranges::all_of(
                                          names, [&](const std::string& name) {
                                            return line.find(name) != std::string::npos;
                                          });
                                    }))
        << sets[0] << ": " << (lines.empty() ? "is taken" : lines[0]);
  }
}

// F134: a million steps leave a bounded log.
TEST(Recipe, F134_ALongRunHasAHundredThousandRecords) {
  const auto records = [](const std::vector<std::string>& sets) {
    const Recipe recipe = loaded(sets).recipe;
    const Position run = plan_of(recipe).run;
    Cadence cadence(record_interval(recipe.log, run));
    int64_t out = 0;
    for (Position now{0, 0, 0}; now.steps < run.steps;) {
      const Position before = now;
      ++now.steps;
      out += cadence.due(before, now, 0);
    }
    return out;
  };
  EXPECT_EQ(records({"train.steps=20"}), 20);
  EXPECT_EQ(records({"train.steps=100000"}), 100000);
  EXPECT_EQ(records({"train.steps=1000000"}), 100000);
  EXPECT_EQ(records({"train.steps=1000000", "log.records=500"}), 2000);
}

TEST(Recipe, AShortRunHasExpertLoadsForAHeatMap) {
  const auto apart = [](const std::vector<std::string>& sets) {
    const Recipe recipe = loaded(sets).recipe;
    return to_text(expert_interval(recipe.log, plan_of(recipe).run));
  };
  EXPECT_EQ(apart({"train.steps=20"}), "1 steps");
  EXPECT_EQ(apart({"train.steps=420"}), "8 steps");
  EXPECT_EQ(apart({"train.steps=1000000"}), "100 steps");
  EXPECT_EQ(apart({"train.steps=20", "log.experts=1B tokens"}), "1B tokens");
  EXPECT_EQ(apart({"train.steps=20", "log.experts=0"}), "0 steps");
}

// Every field of the recipe, with values that it must not take for something else.
// The YAML that gives one field a value, with the kinds of the sections on the way to it.
std::string setting(const std::vector<FieldInfo>& fields, const FieldInfo& field,
                    std::string value) {
  const auto first_kind = [](const FieldInfo& f) {
    return f.only_of.substr(0, f.only_of.find(','));
  };
  std::string rest = field.path, kind = first_kind(field);
  while (!rest.empty()) {
    const size_t dot = rest.rfind('.');
    std::string name = rest.substr(dot + 1);
    rest = dot == std::string::npos ? "" : rest.substr(0, dot);
    if (name.ends_with("[]")) {
      name.resize(name.size() - 2);
      value = '[' + value + ']';
    }
    value = name + ": " + value;
    const auto choice = std::ranges::find(fields, rest + ".kind", &FieldInfo::path);
    if (choice != fields.end() && !kind.empty()) {
      if (name != "kind") value = "kind: " + kind + ", " + value;
      kind = first_kind(*choice);
    }
    value = '{' + value + '}';
  }
  return value;
}

// As messages name it: a list's first item, and a kind by its section.
std::string place_of(const FieldInfo& field) {
  if (field.path == "model.preset") return "preset";
  std::string out;
  for (const char c : field.path) out += c == ']' ? std::string("0]") : std::string(1, c);
  return out.ends_with(".kind") ? out.substr(0, out.size() - 5) : out;
}

// Which of the eight a field may be: the last is no scalar.
std::vector<std::string> sense(const FieldInfo& field, const std::vector<std::string>& values) {
  if (field.type.starts_with("a number")) return {"99999999999999999999"};
  if (field.path == "model.preset") return {"''"};  // none, the default
  if (!field.type.starts_with("a string")) return {};
  return {values.begin(), values.end() - 1};
}

TEST(Recipe, F78_NoFieldOfAnyKindTakesNonsense) {
  const std::vector<FieldInfo> fields = describe(Recipe{});
  const std::vector<std::string> values = {"1e400", ".nan", "99999999999999999999",   "''", "-7x",
                                           "yes",   "0o17", "[1, {no_such_field: 2}]"};
  EXPECT_GT(fields.size(), 250u);
  for (const FieldInfo& field : fields) {
    const std::vector<std::string> sensible = sense(field, values);
    for (const std::string& value : values) {
      const std::string text = setting(fields, field, value);
      SCOPED_TRACE(text + " where " + field.type + " belongs");
      Recipe recipe;
      try {
        read_config(parse_yaml(text, "bad.yaml"), recipe);
        EXPECT_TRUE(std::ranges::find(sensible, value) != sensible.end()) << "was taken";
      } catch (const Error& error) {
        const std::string what = error.what();
        EXPECT_EQ(error.exit_class(), ExitClass::kUsage) << what;
        EXPECT_TRUE(std::ranges::find(sensible, value) == sensible.end()) << what;
        EXPECT_NE(what.find(place_of(field)), std::string::npos) << what;
        const bool scalar = value.front() != '[' && value != "''";
        EXPECT_TRUE(!scalar || what.find(value) != std::string::npos) << what;
      }
    }
  }
}

TEST(Recipe, F77_UnknownKeysAreErrorsWithTheirLine) {
  try {
    loaded({}, "train: {globl_batch: 8}\n");
    FAIL();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("nano.yaml:1"), std::string::npos) << what;
    EXPECT_NE(what.find("global_batch"), std::string::npos) << what;
    EXPECT_EQ(error.exit_class(), ExitClass::kUsage);
  }
}

}  // namespace
}  // namespace troupe
