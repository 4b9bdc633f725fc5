#include "troupe/train/machine/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(Doctor, NumbersAreJudgedAndEachFaultHasACure) {
  EXPECT_EQ(judge_disk(".", 100 * kGiB).verdict, Finding::kOk);
  EXPECT_EQ(judge_disk(".", 5 * kGiB).verdict, Finding::kWarn);
  EXPECT_EQ(judge_disk(".", 1000).verdict, Finding::kFail);
  EXPECT_EQ(judge_disk("nowhere", -1).verdict, Finding::kFail);
  EXPECT_EQ(judge_shared_memory(64 << 20).verdict, Finding::kWarn);
  EXPECT_EQ(judge_shared_memory(8 * kGiB).verdict, Finding::kOk);
  EXPECT_EQ(judge_host_memory(64 * kGiB, kGiB).verdict, Finding::kWarn);
  EXPECT_EQ(judge_open_files(256).verdict, Finding::kWarn);
  EXPECT_EQ(judge_open_files(-1).verdict, Finding::kOk);
  EXPECT_EQ(judge_locked_memory(65536, true).verdict, Finding::kWarn);
  EXPECT_EQ(judge_locked_memory(65536, false).verdict, Finding::kOk);
  EXPECT_EQ(judge_clock(0).verdict, Finding::kWarn);
  EXPECT_EQ(judge_threads(2, 8).verdict, Finding::kWarn);
  EXPECT_EQ(line_of(judge_shared_memory(64 << 20)),
            "warn  /dev/shm: 0.06 GiB. processes on one machine meet there; in a container: "
            "--ipc=host or --shm-size=8g");
  EXPECT_EQ(line_of(judge_open_files(4096)), "ok    open files: 4096");
}

TEST(Doctor, ThisMachineIsExamined) {
  const auto findings = examine(".");
  EXPECT_GE(findings.size(), 10U);
  for (const Finding& f : findings) {
    EXPECT_FALSE(f.found.empty()) << f.what;
    EXPECT_EQ(f.cure.empty(), f.verdict == Finding::kOk) << f.what;
  }
}

TEST(Doctor, AFolderThatARunWillMakeHasTheDiskOfTheOneAboveIt) {
  for (const std::string folder : {"not/there/yet", "/not/there/yet"}) {
    const auto findings = examine(folder);
    const auto disk = std::ranges::find(findings, "disk of " + folder, &Finding::what);
    ASSERT_NE(disk, findings.end());
    EXPECT_FALSE(disk->found.starts_with("unknown")) << disk->found;
  }
}

Recipe recipe_of(int64_t width, int64_t hidden) {
  Recipe r;
  r.model.layers = 2;
  r.model.width = width;
  r.model.heads = 4;
  r.model.moe.experts = 8;
  r.model.moe.ffn.hidden = hidden;
  r.data.sequence = 1024;
  r.train.global_batch = 16;
  r.train.micro_batch = 8;
  r.train.steps = 10;
  return r;
}

TEST(Doctor, E8_KernelsOfTheExpertsAreThoseOfAStart) {
  const auto fused = examine_experts(recipe_of(2048, 1024), 90);
  ASSERT_EQ(fused.size(), 7u);
  EXPECT_EQ(line_of(fused[0]), "ok    experts: fused kernels for Hopper");
  EXPECT_TRUE(line_of(fused[1]).starts_with("ok    kernel up: sums of 2048; tiles of 128 x 256, "))
      << line_of(fused[1]);
  // 8 sequences of 1024 tokens, two experts each, over 8 experts.
  EXPECT_TRUE(fused[6].found.starts_with("sums of 2048; ")) << fused[6].found;

  const auto odd = examine_experts(recipe_of(2048, 1000), 90);
  ASSERT_EQ(odd.size(), 1u);
  EXPECT_EQ(odd[0].verdict, Finding::kWarn);
  EXPECT_NE(odd[0].found.find("widths 2048 and 1000 are not both multiples of 64"),
            std::string::npos)
      << odd[0].found;
  const auto older = examine_experts(recipe_of(2048, 1024), 80);  // nothing in the recipe helps
  EXPECT_EQ(older[0].verdict, Finding::kOk);
  EXPECT_NE(older[0].found.find("compute capability is 80"), std::string::npos) << older[0].found;
  Recipe trial = recipe_of(2048, 1024);
  trial.run.trial_kernels = true;
  const std::string cut = examine_experts(trial, 90).back().found;
  EXPECT_NE(cut.find("on trial: sums cut into segments of 8192"), std::string::npos) << cut;
}

TEST(Doctor, WithoutAGpuTheKernelsOfAHopperGpuAreNamed) {
  EXPECT_EQ(examine_experts(recipe_of(2048, 1024), 0)[0].found,
            "no GPU is here; on a Hopper GPU: fused kernels for Hopper");
  Recipe r = recipe_of(2048, 1024);
  r.train.fp8 = Fp8Config{};
  const auto fp8 = examine_experts(r, 0);
  ASSERT_EQ(fp8.size(), 1u);
  EXPECT_EQ(fp8[0].what, "fp8");
  EXPECT_NE(fp8[0].found.find("In 8 bits on the tensor cores"), std::string::npos) << fp8[0].found;
  r = recipe_of(2048, 0);
  r.model.moe.experts = 0;
  EXPECT_EQ(line_of(examine_experts(r, 90)[0]), "ok    experts: none: a dense model");
}

}  // namespace
}  // namespace troupe
