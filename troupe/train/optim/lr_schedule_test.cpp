#include "troupe/train/optim/lr_schedule.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

constexpr int64_t kSteps[] = {0, 5, 10, 40, 80, 90, 100};
constexpr Position kRun{100, 800, 25600};

Position at(int64_t step) {
  return {step, step * 8, step * 256};
}

template <class C>
C megatron(C c) {
  c.warmup = steps(10);
  c.megatron = true;
  if constexpr (std::is_same_v<C, WsdLr>) c.decay = steps(20);
  return c;
}

WsdLr wsd(Tail tail) {
  WsdLr c;
  c.tail = tail;
  return megatron(c);
}

void expect_table(const LrConfig& config, const std::vector<double>& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(lr_factor(config, at(kSteps[i]), at(kSteps[i] + 1), kRun), want[i], 6e-6)
        << config.kind() << " at " << kSteps[i];
  }
}

// Megatron-LM's OptimizerParamScheduler with max 1, min 0.1, warm-up 10, decay 100, tail 20.
TEST(LrSchedule, MegatronRulesGiveMegatronsTable) {
  expect_table(megatron(LinearLr{}), {0, .5, 1, .7, .3, .2, .1});
  expect_table(megatron(CosineLr{}), {0, .5, 1, .775, .20528, .127138, .1});
  expect_table(megatron(InverseSqrtLr{}), {0, .5, 1, .5, .353553, .333333, .316228});
  expect_table(wsd(Tail::kLinear), {0, .5, 1, 1, 1, .55, .1});
  expect_table(wsd(Tail::kCosine), {0, .5, 1, 1, 1, .55, .1});
  expect_table(wsd(Tail::kExponential), {0, .5, 1, 1, 1, .472792, .1});
  expect_table(wsd(Tail::kSqrt), {0, .5, 1, 1, 1, .363604, .1});
  expect_table(megatron(ConstantLr{}), {0, .5, 1, 1, 1, 1, 1});
}

TEST(LrSchedule, PastTheEndStaysAtTheMinimum) {
  for (const LrConfig& c :
       {LrConfig(LinearLr{}), LrConfig(CosineLr{}), LrConfig(InverseSqrtLr{}), LrConfig(WsdLr{})}) {
    EXPECT_EQ(lr_factor(c, at(101), at(102), kRun), 0.1) << c.kind();
  }
}

TEST(LrSchedule, OwnWarmUpBeginsAboveZeroAndEndsAtTheLargestRate) {
  CosineLr c;
  c.warmup = steps(10);
  EXPECT_DOUBLE_EQ(lr_factor(c, at(0), at(1), kRun), 0.1);
  EXPECT_DOUBLE_EQ(lr_factor(c, at(9), at(10), kRun), 1);
  EXPECT_DOUBLE_EQ(lr_factor(c, at(10), at(11), kRun), 1);
}

// Megatron-LM's --lr-warmup-init, and the same where the warm-up counts as ours does.
TEST(LrSchedule, AWarmUpBeginsAtTheRateThatIsGiven) {
  CosineLr theirs = megatron(CosineLr{});
  theirs.warmup_from = 0.2;
  expect_table(theirs, {.2, .6, 1, .775, .20528, .127138, .1});
  ConstantLr ours;
  ours.warmup = steps(10);
  ours.warmup_from = 0.2;
  EXPECT_NEAR(lr_factor(ours, at(0), at(1), kRun), 0.28, 1e-15);
  EXPECT_DOUBLE_EQ(lr_factor(ours, at(9), at(10), kRun), 1);
  ours.warmup_from = 1.5;
  EXPECT_EQ(lr_faults(ours, kRun),
            std::vector<std::string>{"warmup_from 1.5 is a fraction of the largest rate, 0 to 1"});
}

TEST(LrSchedule, UnitsOfOneRunAgree) {
  LinearLr in_steps, in_samples, in_tokens, in_percent;
  in_steps.warmup = steps(10);
  in_samples.warmup = {80, Span::Unit::kSamples};
  in_tokens.warmup = {2560, Span::Unit::kTokens};
  in_percent.warmup = {10, Span::Unit::kPercent};
  for (int64_t n = 0; n <= 100; ++n) {
    const double want = lr_factor(in_steps, at(n), at(n + 1), kRun);
    EXPECT_DOUBLE_EQ(lr_factor(in_samples, at(n), at(n + 1), kRun), want);
    EXPECT_DOUBLE_EQ(lr_factor(in_tokens, at(n), at(n + 1), kRun), want);
    EXPECT_DOUBLE_EQ(lr_factor(in_percent, at(n), at(n + 1), kRun), want);
  }
}

TEST(LrSchedule, NamesWhatIsWrong) {
  WsdLr c;
  c.warmup = steps(90);
  c.decay = steps(20);
  EXPECT_EQ(lr_faults(c, kRun),
            std::vector<std::string>{"decay 20 is longer than the 10 after the warm-up"});
  c.decay = {256, Span::Unit::kTokens};
  EXPECT_EQ(lr_faults(c, kRun),
            std::vector<std::string>{"256 tokens is in another unit than 90 steps"});
  c.warmup = {1, Span::Unit::kTime};
  EXPECT_EQ(lr_faults(c, kRun).size(), 1u);
  EXPECT_TRUE(lr_faults(CosineLr{}, kRun).empty());
}

TEST(Ramps, WeightDecayMovesAsMegatronsDoes) {
  EXPECT_DOUBLE_EQ(ramped(0.1, 0.3, RampForm::kLinear, 25, 100), 0.15);
  EXPECT_NEAR(ramped(0.1, 0.3, RampForm::kCosine, 25, 100), 0.1 + 0.2 * 0.14644660940672624, 1e-15);
  EXPECT_DOUBLE_EQ(ramped(0.1, 0.3, RampForm::kCosine, 200, 100), 0.3);
}

TEST(Ramps, BatchGrowsInEqualStretchesAndCountsItsSamples) {
  const BatchRamp ramp{.start = 8, .increment = 8, .samples = 96};
  EXPECT_EQ(batch_at(ramp, 32, 0), 8);
  EXPECT_EQ(batch_at(ramp, 32, 31), 8);
  EXPECT_EQ(batch_at(ramp, 32, 32), 16);
  EXPECT_EQ(batch_at(ramp, 32, 64), 24);
  EXPECT_EQ(batch_at(ramp, 32, 96), 32);
  EXPECT_EQ(batch_at(std::nullopt, 32, 0), 32);
  // 4 steps of 8, 2 of 16, 2 of 24 (to 112), then 28 of 32 to reach 1000.
  EXPECT_EQ(run_of(ramp, 32, 10, 10000), (Position{36, 1008, 10080}));
  EXPECT_EQ(run_of(std::nullopt, 32, 10, 10000), (Position{32, 1024, 10240}));
}

TEST(Ramps, StagesAreBatchesUntilASample) {
  const BatchRamp ramp{.stages = {{4, 16}, {12, 40}}};
  EXPECT_EQ(batch_at(ramp, 32, 0), 4);
  EXPECT_EQ(batch_at(ramp, 32, 15), 4);
  EXPECT_EQ(batch_at(ramp, 32, 16), 12);
  EXPECT_EQ(batch_at(ramp, 32, 39), 12);
  EXPECT_EQ(batch_at(ramp, 32, 40), 32);
  // 4 steps of 4, 2 of 12, then 3 of 32 to reach 136.
  EXPECT_EQ(run_of(ramp, 32, 10, 1360), (Position{9, 136, 1360}));
  EXPECT_TRUE(ramp_faults(ramp, 32, 4).empty());
  EXPECT_EQ(ramp_faults(ramp, 32, 8),
            std::vector<std::string>{"has batches that are no multiples of micro_batch 8"});
  EXPECT_EQ(ramp_faults({.start = 4, .stages = {{4, 16}}}, 32, 0).size(), 1u);
  EXPECT_EQ(ramp_faults({.stages = {{4, 16}, {8, 16}}}, 32, 0).size(), 1u);
  EXPECT_EQ(ramp_faults({.stages = {{0, 16}}}, 32, 0).size(), 1u);
}

TEST(Spans, ReadAndPrintTheSame) {
  for (const std::string text : {"2K steps", "100K samples", "1B tokens", "5%", "30min"}) {
    Span span;
    ASSERT_TRUE(from_text(text, span)) << text;
    EXPECT_EQ(to_text(span), text);
  }
  Span span;
  EXPECT_TRUE(from_text("2000", span));
  EXPECT_EQ(span, steps(2000));
  for (const std::string text : {"", "steps", "101%", "-1 steps", "5 apples", "1.5 steps"}) {
    EXPECT_FALSE(from_text(text, span)) << text;
  }
}

TEST(Spans, CadenceAsksAtTheSamePlacesAfterAResume) {
  Cadence whole(steps(5)), resumed_run(steps(5)), never(steps(0));
  for (int64_t n = 0; n < 20; ++n) {
    EXPECT_EQ(whole.due(at(n), at(n + 1), 0), (n + 1) % 5 == 0);
    if (n >= 7) {
      EXPECT_EQ(resumed_run.due(at(n), at(n + 1), 0), (n + 1) % 5 == 0);
    }
    EXPECT_FALSE(never.due(at(n), at(n + 1), 0));
  }
  Cadence timed({2'000'000'000, Span::Unit::kTime});
  EXPECT_FALSE(timed.due({}, {}, 1.9));
  EXPECT_TRUE(timed.due({}, {}, 2.1));
  EXPECT_FALSE(timed.due({}, {}, 4.0));
}

}  // namespace
}  // namespace troupe
