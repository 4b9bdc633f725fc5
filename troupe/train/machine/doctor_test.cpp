#include "troupe/train/machine/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "troupe/core/device/open_files.h"
#include "troupe/distributed/world/start_needs.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

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

TEST(Doctor, NumbersAreJudgedAndEachFaultHasACure) {
  EXPECT_EQ(judge_disk(".", 100 * kGiB).verdict, Finding::kOk);
  EXPECT_EQ(judge_disk(".", 5 * kGiB).verdict, Finding::kWarn);
  EXPECT_EQ(judge_disk(".", 1000).verdict, Finding::kFail);
  EXPECT_EQ(judge_disk("nowhere", -1).verdict, Finding::kFail);
  EXPECT_EQ(judge_shared_memory(64 << 20).verdict, Finding::kWarn);
  EXPECT_EQ(judge_shared_memory(8 * kGiB).verdict, Finding::kOk);
  EXPECT_EQ(judge_host_memory(64 * kGiB, kGiB).verdict, Finding::kWarn);
  EXPECT_EQ(judge_open_files({.given = 64, .allowed = 256}).verdict, Finding::kWarn);
  EXPECT_EQ(judge_open_files({.given = -1, .allowed = -1}).verdict, Finding::kOk);
  EXPECT_EQ(judge_locked_memory(65536, true).verdict, Finding::kWarn);
  EXPECT_EQ(judge_locked_memory(65536, false).verdict, Finding::kOk);
  EXPECT_EQ(judge_free_of_host(kGiB / 2).verdict, Finding::kWarn);
  EXPECT_EQ(judge_free_of_host(-1).verdict, Finding::kOk);
  EXPECT_EQ(judge_clock(0).verdict, Finding::kWarn);
  EXPECT_EQ(judge_threads(2, 8).verdict, Finding::kWarn);
  EXPECT_EQ(line_of(judge_shared_memory(64 << 20)),
            "warn  /dev/shm: 0.06 GiB. processes on one machine meet there; in a container: "
            "--ipc=host or --shm-size=8g");
  EXPECT_EQ(line_of(judge_open_files({.given = 1024, .allowed = 65536})),
            "ok    open files: 65536 (raised from 1024), enough for rank 0 of 32629 ranks where it "
            "serves the store");
}

TEST(Doctor, AStartOfManyRanksIsJudgedByItsNumbers) {
  const OpenFiles few{.given = 1024, .allowed = 1024}, many{.given = 1024, .allowed = 65536};
  const StartNeeds needs = start_needs(3072);
  std::vector<Finding> found = judge_start(needs, few, 28'232, 64 * kGiB);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(line_of(found[0]),
            "ok    open files: a rank of 3072 needs 277, this machine allows 1024");
  EXPECT_TRUE(line_of(found[1]).starts_with(
      "warn  open files: rank 0 of 3072, where it serves the store, needs 6421, this machine "
      "allows 1024. raise the hard limit"))
      << line_of(found[1]);
  EXPECT_EQ(found[2].verdict, Finding::kOk);
  EXPECT_EQ(found[3].verdict, Finding::kOk);
  found = judge_start(needs, many, 100, kGiB / 16);
  EXPECT_EQ(found[1].verdict, Finding::kOk);
  EXPECT_EQ(found[2].verdict, Finding::kWarn);
  EXPECT_TRUE(found[2].found.starts_with(
      "a rank of 3072 needs 37, this machine has 100, enough for 2 ranks on it"))
      << found[2].found;
  EXPECT_EQ(found[3].verdict, Finding::kWarn);
  // 1,024 files are enough for few ranks and not for many.
  EXPECT_EQ(judge_start(start_needs(300), few, 28'232, kGiB)[1].verdict, Finding::kOk);
  EXPECT_EQ(judge_start(start_needs(400), few, 28'232, kGiB)[1].verdict, Finding::kWarn);
  for (const Finding& of : judge_start(start_needs(1), few, 28'232, kGiB)) {
    EXPECT_EQ(of.verdict, Finding::kOk) << line_of(of);
  }
}

TEST(Doctor, AGpuIsJudgedByTheCodeThatItRuns) {
  const GpuFound h200{0, "NVIDIA H200", 90};
  EXPECT_EQ(line_of(judge_gpu(h200, code_text("90a-real", 90), "")),
            "ok    GPU: GPU 0 (NVIDIA H200, compute capability 9.0) answers and runs this build by "
            "machine code; run.device: auto takes it");
  const std::string why = why_not_on("120-real", h200, false);
  const Finding without = judge_gpu(h200, code_text("120-real", 90), why);
  EXPECT_EQ(without.verdict, Finding::kWarn);
  EXPECT_EQ(without.found, why);
  EXPECT_FALSE(without.cure.empty());
}

TEST(Doctor, AHopperGpuWithoutItsOwnCodeIsWarnedOf) {
  const auto plain = examine_experts(recipe_of(2048, 1024), {90, false});
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_EQ(plain[0].verdict, Finding::kWarn);
  EXPECT_NE(plain[0].found.find("no code for sm_90a"), std::string::npos) << plain[0].found;
  EXPECT_NE(plain[0].cure.find("90a-real"), std::string::npos) << plain[0].cure;
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

TEST(Doctor, E8_KernelsOfTheExpertsAreThoseOfAStart) {
  const auto fused = examine_experts(recipe_of(2048, 1024), {90, true});
  ASSERT_EQ(fused.size(), 7u);
  EXPECT_EQ(line_of(fused[0]), "ok    experts: fused kernels for Hopper");
  EXPECT_TRUE(line_of(fused[1]).starts_with("ok    kernel up: sums of 2048; tiles of 128 x 256, "))
      << line_of(fused[1]);
  // 8 sequences of 1024 tokens, two experts each, over 8 experts.
  EXPECT_TRUE(fused[6].found.starts_with("sums of 2048; ")) << fused[6].found;

  const auto odd = examine_experts(recipe_of(2048, 1000), {90, true});
  ASSERT_EQ(odd.size(), 1u);
  EXPECT_EQ(odd[0].verdict, Finding::kWarn);
  EXPECT_NE(odd[0].found.find("widths 2048 and 1000 are not both multiples of 64"),
            std::string::npos)
      << odd[0].found;
  const auto older = examine_experts(recipe_of(2048, 1024), {80});  // nothing in the recipe helps
  EXPECT_EQ(older[0].verdict, Finding::kOk);
  EXPECT_NE(older[0].found.find("compute capability is 80"), std::string::npos) << older[0].found;
  Recipe trial = recipe_of(2048, 1024);
  trial.run.trial_kernels = true;
  const std::string cut = examine_experts(trial, {90, true}).back().found;
  EXPECT_NE(cut.find("on trial: sums cut into segments of 8192"), std::string::npos) << cut;
}

TEST(Doctor, WithoutAGpuTheKernelsOfAHopperGpuAreNamed) {
  EXPECT_EQ(examine_experts(recipe_of(2048, 1024), {})[0].found,
            "no GPU is here; on a Hopper GPU: fused kernels for Hopper");
  Recipe r = recipe_of(2048, 1024);
  r.train.fp8 = Fp8Config{};
  const auto fp8 = examine_experts(r, {});
  ASSERT_EQ(fp8.size(), 1u);
  EXPECT_EQ(fp8[0].what, "fp8");
  EXPECT_NE(fp8[0].found.find("In 8 bits on the tensor cores"), std::string::npos) << fp8[0].found;
  r = recipe_of(2048, 0);
  r.model.moe.experts = 0;
  EXPECT_EQ(line_of(examine_experts(r, {90, true})[0]), "ok    experts: none: a dense model");
}

}  // namespace
}  // namespace troupe
