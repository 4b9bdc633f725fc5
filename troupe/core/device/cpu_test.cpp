#include "troupe/core/device/cpu.h"

#include <gtest/gtest.h>

#include "troupe/core/check.h"

namespace troupe {
namespace {

const std::vector<CpuFeature> kOld = {
    {"sse4.2", 2, true}, {"avx2", 3, false}, {"fma", 3, false}, {"avx512f", 4, false}};

TEST(Cpu, RunsWhatThisMachineWasBuiltFor) {
  EXPECT_NO_THROW(check_cpu());
}

TEST(Cpu, NamesAllThatIsMissingAndTheWayOut) {
  try {
    check_cpu("x86-64-v3", kOld);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_STREQ(
        e.what(),
        "this processor: E7003 lacks avx2, fma, which a build for x86-64-v3 needs; rebuild "
        "with -DTROUPE_CPU_ARCH=");
    EXPECT_EQ(e.exit_class(), ExitClass::kResource);
  }
}

TEST(Cpu, AsksForNoMoreThanTheBuildUses) {
  EXPECT_NO_THROW(check_cpu("x86-64-v2", kOld));
  EXPECT_NO_THROW(check_cpu("", kOld));
  EXPECT_NO_THROW(check_cpu("native", kOld));
  EXPECT_NO_THROW(check_cpu("x86-64", kOld));
  EXPECT_THROW(check_cpu("x86-64-v4", {{"avx2", 3, true}, {"avx512f", 4, false}}), Error);
  EXPECT_NO_THROW(check_cpu("x86-64-v4", {}));
}

}  // namespace
}  // namespace troupe
