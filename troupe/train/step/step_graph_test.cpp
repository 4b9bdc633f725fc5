// What a GPU does with it is tests/troupe_gpu_test.py's.
#include "troupe/train/step/step_graph.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

namespace troupe {
namespace {

StepOutput output_of_two_layers() {
  StepOutput out;
  out.loss = at::scalar_tensor(2.5, at::kDouble);
  out.aux["aux"] = at::scalar_tensor(0.25, at::kDouble);
  out.aux_terms["aux"] = 4;
  out.moe[1] = {{.counts_E = at::full({4}, 7, at::kLong)},
                {.counts_E = at::full({4}, 9, at::kLong),
                 .dropped = at::scalar_tensor(3, at::kLong),
                 .microbatches = 2}};
  return out;
}

TEST(StepGraph, ACopyOfAnOutputHasItsValuesAndMemoryOfItsOwn) {
  const StepOutput given = output_of_two_layers();
  const PackedOutput packed(given);
  const StepOutput one = packed.copy(), two = packed.copy();
  one.loss.zero_();
  one.moe.at(1)[1].counts_E.zero_();
  EXPECT_TRUE(at::equal(two.loss, given.loss));
  EXPECT_FALSE(two.mtp.defined());
  EXPECT_TRUE(at::equal(two.aux.at("aux"), given.aux.at("aux")));
  EXPECT_EQ(two.aux_terms.at("aux"), 4);
  ASSERT_EQ(two.moe.at(1).size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal(two.moe.at(1)[i].counts_E, given.moe.at(1)[i].counts_E));
  }
  EXPECT_TRUE(at::equal(two.moe.at(1)[1].dropped, given.moe.at(1)[1].dropped));
  EXPECT_FALSE(two.moe.at(1)[0].dropped.defined());
  EXPECT_EQ(two.moe.at(1)[1].microbatches, 2);
}

TEST(StepGraph, WhatHasNoneSaysWhy) {
  const c10::Device gpu(c10::kCUDA, 0);
  EXPECT_EQ(why_no_graph(true, gpu, Faults()), "");
  EXPECT_EQ(why_no_graph(true, c10::kCPU, Faults()), "on a cpu there are none");
  EXPECT_NE(why_no_graph(false, gpu, Faults()).find("several ranks"), std::string::npos);
  EXPECT_NE(why_no_graph(true, gpu, Faults("optim:5=nan")).find("TROUPE_FAULT"), std::string::npos);
}

}  // namespace
}  // namespace troupe
