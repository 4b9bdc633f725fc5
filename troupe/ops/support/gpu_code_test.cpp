#include "troupe/ops/support/gpu_code.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

constexpr const char* kDefault = "80-real;90a-real;100-real;103-real;120-real;90-virtual";
const GpuFound kH200{0, "NVIDIA H200", 90};
const GpuFound kTuring{1, "NVIDIA T4", 75};

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(GpuCode, MachineCodeRunsOnItsMajorVersionFromItsMinorOneOn) {
  EXPECT_EQ(gpu_code("80-real", 80), GpuCode::kMachine);
  EXPECT_EQ(gpu_code("80-real", 86), GpuCode::kMachine);
  EXPECT_EQ(gpu_code("80-real", 89), GpuCode::kMachine);
  EXPECT_EQ(gpu_code("80-real", 90), GpuCode::kNone);
  EXPECT_EQ(gpu_code("86-real", 80), GpuCode::kNone);
  EXPECT_EQ(gpu_code("120-real", 121), GpuCode::kMachine);
  EXPECT_EQ(gpu_code("100-real", 103), GpuCode::kMachine);
  EXPECT_EQ(gpu_code("100-real", 110), GpuCode::kNone);
  EXPECT_EQ(gpu_code("100-real", 120), GpuCode::kNone);
}

TEST(GpuCode, CodeForOneGpuAloneRunsThereAlone) {
  EXPECT_EQ(gpu_code("90a-real", 90), GpuCode::kMachine);
  EXPECT_EQ(gpu_code("100a-real", 103), GpuCode::kNone);
  EXPECT_EQ(gpu_code("90a-virtual", 90), GpuCode::kPtx);
  EXPECT_EQ(gpu_code("90a-virtual", 100), GpuCode::kNone);
  EXPECT_EQ(gpu_code("100f-virtual", 103), GpuCode::kPtx);
  EXPECT_EQ(gpu_code("100f-virtual", 120), GpuCode::kNone);
}

TEST(GpuCode, PtxRunsOnAllThatIsLaterAndANumberAloneIsBoth) {
  EXPECT_EQ(gpu_code("80-virtual", 90), GpuCode::kPtx);
  EXPECT_EQ(gpu_code("80-virtual", 75), GpuCode::kNone);
  EXPECT_EQ(gpu_code("90-virtual", 130), GpuCode::kPtx);
  EXPECT_EQ(gpu_code("86", 89), GpuCode::kMachine);
  EXPECT_EQ(gpu_code("86", 90), GpuCode::kPtx);
  EXPECT_EQ(gpu_code("", 90), GpuCode::kNone);
  EXPECT_EQ(gpu_code("80-virtual,90a-real", 90), GpuCode::kMachine) << "whatever the order";
}

TEST(GpuCode, TheDefaultListServesEveryGpuFrom80On) {
  for (int capability : {80, 86, 87, 89, 90, 100, 103, 120, 121}) {
    EXPECT_EQ(gpu_code(kDefault, capability), GpuCode::kMachine) << capability;
  }
  for (int capability : {110, 130, 200}) {
    EXPECT_EQ(gpu_code(kDefault, capability), GpuCode::kPtx) << capability;
  }
  for (int capability : {60, 70, 75}) {
    EXPECT_EQ(gpu_code(kDefault, capability), GpuCode::kNone) << capability;
  }
}

TEST(GpuCode, TheEnvironmentHidesOneOfTheTwo) {
  EXPECT_EQ(gpu_code(kDefault, 90, {.ptx_only = true}), GpuCode::kPtx);
  EXPECT_EQ(gpu_code("90a-real", 90, {.ptx_only = true}), GpuCode::kNone);
  EXPECT_EQ(gpu_code(kDefault, 90, {.no_ptx = true}), GpuCode::kMachine);
  EXPECT_EQ(gpu_code("80-virtual", 90, {.no_ptx = true}), GpuCode::kNone);
}

TEST(GpuCode, AListIsReadableText) {
  EXPECT_EQ(architectures_text(kDefault),
            "sm_80, sm_90a, sm_100, sm_103, sm_120 and PTX of compute_90");
  EXPECT_EQ(architectures_text("80-virtual"), "PTX of compute_80");
  EXPECT_EQ(architectures_text("90a-real"), "sm_90a");
  EXPECT_EQ(architectures_text("80 90"), "sm_80, sm_90 and PTX of compute_80 and compute_90");
  EXPECT_EQ(architectures_text(""), "no CUDA");
}

TEST(GpuCode, WhereNothingFitsItIsSaidWhatTheBuildIsForAndHowToBuildAnother) {
  EXPECT_EQ(
      why_no_code("120-real", {kH200}),
      "GPU 0 (NVIDIA H200, compute capability 9.0) runs no kernel of this build: this build is "
      "for sm_120. For it build from source: cmake '-DCMAKE_CUDA_ARCHITECTURES=90a-real' "
      "build/release, then ./dev build (docs/develop/BUILD.md)");
  const std::string two =
      why_no_code("80-real", {kH200, {.index = 1, .name = "", .capability = 120}});
  EXPECT_TRUE(
      two.starts_with("GPU 0 (NVIDIA H200, compute capability 9.0) and GPU 1 (compute "
                      "capability 12.0) run no kernel"))
      << two;
  EXPECT_TRUE(says(two, "=90a-real;120-real'")) << two;
  const std::string old = why_no_code(kDefault, {kTuring});
  EXPECT_TRUE(says(old, "need compute capability 8.0 or later")) << old;
  EXPECT_FALSE(says(old, "cmake")) << old;
}

TEST(GpuCode, OneGpuThatFitsIsEnough) {
  EXPECT_EQ(why_no_code(kDefault, {kH200}), "");
  EXPECT_EQ(why_no_code(kDefault, {kTuring, kH200}), "");
  EXPECT_EQ(why_no_code(kDefault, {}), "");
}

TEST(GpuCode, AHiddenImageIsNamedByItsVariable) {
  const std::string forced = why_no_code("90a-real", {kH200}, {.ptx_only = true});
  EXPECT_TRUE(says(forced, "CUDA_FORCE_PTX_JIT is set")) << forced;
  EXPECT_FALSE(says(forced, "cmake")) << forced;
  const std::string disabled = why_no_code("80-virtual", {kH200}, {.no_ptx = true});
  EXPECT_TRUE(says(disabled, "CUDA_DISABLE_PTX_JIT is set")) << disabled;
  EXPECT_TRUE(says(why_no_code("120-real", {kH200}, {.ptx_only = true}), "cmake"))
      << "to unset it would not help";
}

TEST(GpuCode, TheLookUpHasTheLastWordOfOneGpu) {
  EXPECT_EQ(why_not_on(kDefault, kH200, true), "");
  EXPECT_EQ(why_not_on("", kH200, true), "") << "whatever the list says";
  const std::string mixed = why_not_on(kDefault, kTuring, false);
  EXPECT_TRUE(mixed.starts_with("GPU 1 (NVIDIA T4, compute capability 7.5)")) << mixed;
  EXPECT_TRUE(says(mixed, "CUDA_VISIBLE_DEVICES")) << mixed;
  const std::string old_driver = why_not_on("80-virtual", kH200, false);
  EXPECT_TRUE(says(old_driver, "Install a newer driver")) << old_driver;
  EXPECT_TRUE(says(old_driver, "PTX of compute_80")) << old_driver;
}

TEST(GpuCode, WhatWasRunIsToldFromWhatWasCompiled) {
  EXPECT_EQ(tried_text(kDefault),
            "sm_90a was run, on H100 and H200; sm_80, sm_100, sm_103, sm_120 and PTX of compute_90 "
            "were compiled and not run");
  EXPECT_EQ(tried_text("90a-real"), "sm_90a was run, on H100 and H200");
  EXPECT_EQ(tried_text("120-real"), "sm_120 was compiled and not run");
  EXPECT_EQ(tried_text("80-virtual"), "PTX of compute_80 was run, on an H200");
  EXPECT_EQ(tried_text(""), "");
}

TEST(GpuCode, DoctorTellsMachineCodeFromPtx) {
  EXPECT_EQ(code_text(kDefault, 90), "machine code");
  EXPECT_TRUE(code_text(kDefault, 110).starts_with("PTX")) << code_text(kDefault, 110);
  EXPECT_EQ(code_text("120-real", 90), "none");
}

}  // namespace
}  // namespace troupe
