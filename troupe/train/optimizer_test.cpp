#include "troupe/train/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <sstream>

#include "troupe/checkpoint/names.h"
#include "troupe/core/config.h"
#include "troupe/core/split_f32.h"

namespace troupe {
namespace {

// A few parameters of every sort, in a store.
struct Bench {
  explicit Bench(const OptimizerConfig& config, at::ScalarType dtype = at::kFloat)
      : optimizer(std::visit([](const auto& c) { return c.build(); }, config)),
        base(base_of(config)),
        store({{"w", &w}, {"norm", &norm}, {"experts.w1", &experts}, {"bias", &state}},
              at::TensorOptions(dtype), [&](const NamedParam& p) { return bucket_key(base, p); }) {
    store.initialise_all(1);
    const at::ScalarType moments = base.moments == MomentType::kF32 ? at::kFloat : at::kBFloat16;
    for (Bucket& b : store.buckets()) {
      for (size_t i = 0; i < optimizer->state_names(b).size(); ++i) {
        b.state.push_back(at::zeros({b.size}, moments));
      }
    }
  }

  void step(int64_t n, double grad, double lr = 0.1) {
    store.begin_step();
    for (size_t s = 0; s < store.slots().size(); ++s) {
      store.add(static_cast<int64_t>(s), at::full(store.slots()[s].named.param->shown, grad));
    }
    store.end_step();
    const at::NoGradGuard no_grad;
    for (Bucket& b : store.buckets()) {
      optimizer->update(store, b,
                        {.step = n,
                         .lr = lr * b.key.lr_scale,
                         .weight_decay = b.key.decay ? base.weight_decay : 0,
                         .grad_scale = at::ones({1})});
    }
  }

  Param w = Param::of({3, 5}, {.kind = Init::kOne});
  Param norm = Param::of({7}, {.kind = Init::kOne}, Group::kNoDecay);
  Param experts = Param::of_experts({2, 2, 3, 4}, {.kind = Init::kNormal, .std = 1}, {});
  Param state = Param::of({2}, {.kind = Init::kZero}).as_state();
  std::unique_ptr<Optimizer> optimizer;
  OptimizerBase base;
  ParamStore store;
};

float first(const Param& p) {
  return p.value.detach().view(-1)[0].item<float>();
}

TEST(ParamStore, ValuesAreViewsOfFewBuffers) {
  Bench bench{AdamWConfig{}};
  ASSERT_EQ(bench.store.buckets().size(), 2u);  // decaying matrices, and the norm
  EXPECT_TRUE(bench.w.value.requires_grad());
  EXPECT_TRUE(bench.w.value.is_leaf());
  bench.store.buckets()[0].value.fill_(3);
  EXPECT_EQ(first(bench.w), 3);
  EXPECT_EQ(first(bench.norm), 1);
  EXPECT_EQ(bench.store.others().size(), 1u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(bench.experts.value.data_ptr()) % 64, 0u);
}

TEST(ParamStore, GradientsAddUpInF32) {
  Bench bench{AdamWConfig{}, at::kBFloat16};
  bench.store.begin_step();
  bench.store.add(0, at::full({3, 5}, 1.0, at::kBFloat16));
  bench.store.add(0, at::full({3, 5}, 0x1p-12, at::kBFloat16));
  bench.store.end_step();
  EXPECT_EQ(bench.store.grad(0)[0].item<float>(), 1 + 0x1p-12f);  // bf16 would have lost it
  bench.store.begin_step();
  bench.store.end_step();
  EXPECT_EQ(bench.store.grad(0).abs().max().item<float>(), 0);
}

TEST(ParamStore, TheFirstGradientIsHeldAndNeverWrittenTo) {
  Bench bench{AdamWConfig{}};
  const at::Tensor first = at::ones({3, 5});
  bench.store.begin_step();
  bench.store.add(0, first);
  EXPECT_EQ(bench.store.grad(0).const_data_ptr(), first.const_data_ptr());
  for (int i = 0; i < 2; ++i) bench.store.add(0, first);
  bench.store.end_step();
  EXPECT_EQ(bench.store.grad(0).sum().item<float>(), 45);
  EXPECT_EQ(first.sum().item<float>(), 15);
}

// Two parameters may get one tensor from backward: c = a + b.
TEST(Optimizers, NoneWritesToAGradient) {
  for (const OptimizerConfig& config :
       {OptimizerConfig(AdamWConfig{}), OptimizerConfig(SgdConfig{}), OptimizerConfig(LionConfig{}),
        OptimizerConfig(MuonConfig{})}) {
    Bench bench{config};
    const at::Tensor grad = at::ones({3, 5});
    bench.store.begin_step();
    bench.store.add(0, grad);
    bench.store.end_step();
    const at::NoGradGuard no_grad;
    for (Bucket& b : bench.store.buckets()) {
      bench.optimizer->update(bench.store, b, {.lr = 1, .grad_scale = at::full({1}, 0.5)});
    }
    EXPECT_TRUE(at::equal(grad, at::ones({3, 5})));
  }
}

TEST(ParamStore, F111_NamesTheExpertWithTheBadGradient) {
  Bench bench{AdamWConfig{}};
  bench.store.begin_step();
  at::Tensor grad = at::zeros({2, 2, 3, 4});
  grad[1][0][2][3] = std::numeric_limits<float>::quiet_NaN();
  bench.store.add(2, grad);
  bench.store.end_step();
  const auto bad = bad_gradients(bench.store);
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].name, "experts.1.w1");
  EXPECT_EQ(bad[0].bad, 1);
  EXPECT_EQ(bad[0].of, 24);
}

TEST(Optimizers, AdamWIsTheHandExample) {
  AdamWConfig config;
  config.lr = 0.1;
  Bench bench{config};
  bench.step(1, 0.5);
  EXPECT_NEAR(first(bench.w), 0.89, 1e-6);     // 0.99 - 0.1
  EXPECT_NEAR(first(bench.norm), 0.90, 1e-6);  // norms do not decay
}

TEST(Optimizers, F121_NoRateChangesNothingAndDecayAloneScales) {
  for (const OptimizerConfig& config :
       {OptimizerConfig(AdamWConfig{}), OptimizerConfig(SgdConfig{}), OptimizerConfig(LionConfig{}),
        OptimizerConfig(MuonConfig{})}) {
    Bench bench{config};
    const at::Tensor before = bench.store.buckets()[0].value.clone();
    bench.step(1, 0.5, 0);
    EXPECT_TRUE(at::equal(bench.store.buckets()[0].value, before)) << config.kind();
    Bench still{config};
    still.step(1, 0, 0.5);
    EXPECT_FLOAT_EQ(first(still.w), 1 - 0.5 * 0.1) << config.kind();
    EXPECT_EQ(first(still.norm), 1) << config.kind();
  }
}

TEST(Optimizers, SgdAndLionAreTheirFormulas) {
  SgdConfig sgd;
  sgd.weight_decay = 0;
  Bench a{sgd};
  a.step(1, 0.5);
  a.step(2, 0.5);
  EXPECT_NEAR(first(a.w), 1 - 0.1 * 0.5 - 0.1 * 0.95, 1e-6);
  LionConfig lion;
  Bench b{lion};
  b.step(1, 0.5);
  EXPECT_NEAR(first(b.w), 0.99 - 0.1, 1e-6);
  b.step(2, -0.001);  // b1 m + (1 - b1) g = 0.9 * 0.005 - 0.0001 > 0: still down
  EXPECT_NEAR(first(b.w), 0.89 * 0.99 - 0.1, 1e-6);
}

TEST(Optimizers, MastersOutliveTheModelsRounding) {
  AdamWConfig config;
  config.weight_decay = 0;
  Bench bench{config, at::kBFloat16};
  for (int64_t n = 1; n <= 100; ++n) bench.step(n, 0.5, 1e-4);  // each far below bf16's spacing
  EXPECT_NEAR(first(bench.w), 0.99, 0.004);
  const Bucket& b = bench.store.buckets()[0];
  EXPECT_NEAR(bench.store.part(0, master_of(b))[0].item<float>(), 0.99, 1e-5);
  EXPECT_FALSE(b.master.defined());
  EXPECT_EQ(b.low.element_size(), 2);
}

// Of a bf16 model in 20 steps, beside the same parameters in f32 with the same gradients.
TEST(Optimizers, MastersInHalvesHaveTheBitsOfWholeOnes) {
  for (const OptimizerConfig& config :
       {OptimizerConfig(AdamWConfig{}), OptimizerConfig(SgdConfig{}), OptimizerConfig(LionConfig{}),
        OptimizerConfig(MuonConfig{})}) {
    Bench halves{config, at::kBFloat16}, whole{config};
    for (size_t i = 0; i < halves.store.buckets().size(); ++i) {
      whole.store.buckets()[i].own.copy_(halves.store.buckets()[i].own);
    }
    for (int64_t n = 1; n <= 20; ++n) {
      const double grad = std::cos(static_cast<double>(n));
      halves.step(n, grad, 1e-3), whole.step(n, grad, 1e-3);
    }
    double apart = 0;
    for (size_t i = 0; i < halves.store.buckets().size(); ++i) {
      const Bucket &a = halves.store.buckets()[i], &b = whole.store.buckets()[i];
      EXPECT_TRUE(at::equal(master_of(a), b.master)) << config.kind();
      EXPECT_TRUE(at::equal(a.own, b.own.to(at::kBFloat16))) << config.kind();  // no ties here
      apart += (master_of(a) - a.own).abs().sum().item<double>();
    }
    EXPECT_GT(apart, 0) << config.kind();  // the low halves are at work
  }
}

// PyTorch's operators for any device, and core/split_f32.h.
TEST(ParamStore, HalvesAreThoseOfTheFormula) {
  const at::Tensor x = at::zeros({1 << 16}), value = at::zeros({1 << 16}, at::kBFloat16),
                   low = at::zeros({1 << 16}, at::kShort);
  for (const uint32_t rest : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    auto* const numbers = x.mutable_data_ptr<float>();
    for (uint32_t i = 0; i < 0x10000; ++i) numbers[i] = std::bit_cast<float>((i << 16) | rest);
    split(x, value, low);
    const at::Tensor back = joined(value, low);
    const auto* const high = static_cast<const uint16_t*>(value.const_data_ptr());
    const auto* const left = static_cast<const uint16_t*>(low.const_data_ptr());
    for (uint32_t i = 0; i < 0x10000; ++i) {
      const SplitF32 want = split_f32(numbers[i]);
      ASSERT_EQ(high[i], want.value) << i << ' ' << rest;
      ASSERT_EQ(left[i], want.low) << i << ' ' << rest;
      ASSERT_EQ(std::bit_cast<uint32_t>(back.const_data_ptr<float>()[i]),
                std::bit_cast<uint32_t>(join_f32(want.value, want.low)));
    }
  }
}

TEST(ParamStore, ValuesAloneAreTheirMasters) {
  Bench bench{AdamWConfig{}, at::kBFloat16};
  for (int64_t n = 1; n <= 3; ++n) bench.step(n, 0.3, 1e-4);
  const Bucket& b = bench.store.buckets()[0];
  ASSERT_FALSE(at::equal(master_of(b), b.own.to(at::kFloat)));
  bench.store.masters_from_values();
  EXPECT_TRUE(at::equal(master_of(b), b.own.to(at::kFloat)));
}

TEST(Optimizers, Bf16MomentsHalveTheBytes) {
  AdamWConfig config;
  config.moments = MomentType::kBF16;
  Bench bench{config};
  bench.step(1, 0.5);
  EXPECT_NEAR(first(bench.w), 0.89, 1e-3);
  EXPECT_EQ(bench.store.buckets()[0].state[0].element_size(), 2);
}

TEST(Muon, NewtonSchulzBringsSingularValuesNearOne) {
  Param p = Param::of({2, 6, 8}, {.kind = Init::kNormal, .std = 1});
  initialise(p, "x", 1);
  const at::Tensor x = p.value.detach();
  const at::Tensor s = std::get<1>(at::linalg_svd(newton_schulz(x), false));
  EXPECT_GT(s.min().item<float>(), 0.3);
  EXPECT_LT(s.max().item<float>(), 1.3);
  // Against the polar factor: U V^T of the same matrix.
  const auto [u, ignored, vh] = at::linalg_svd(x, false);
  const at::Tensor polar = at::matmul(u, vh);
  const at::Tensor got = newton_schulz(x);
  const double cosine = ((got * polar).sum() / (got.norm() * polar.norm())).item<double>();
  EXPECT_GT(cosine, 0.97);
}

TEST(Muon, EachExpertsProjectionIsItsOwnMatrix) {
  MuonConfig config;
  config.weight_decay = 0;
  Bench bench{config};
  const at::Tensor before = bench.experts.value.detach().clone();
  bench.store.begin_step();
  at::Tensor grad = at::zeros({2, 2, 3, 4});
  grad[1][0] = (at::arange(12.0) * 0.9).cos().view({3, 4});
  bench.store.add(2, grad);
  bench.store.end_step();
  {
    const at::NoGradGuard no_grad;
    for (Bucket& b : bench.store.buckets()) {
      bench.optimizer->update(bench.store, b, {.lr = 1, .grad_scale = at::ones({1})});
    }
  }
  const at::Tensor moved = (bench.experts.value.detach() - before).view({2, 2, 3, 4});
  EXPECT_EQ(moved[0].abs().max().item<float>(), 0);
  EXPECT_EQ(moved[1][1].abs().max().item<float>(), 0);
  const at::Tensor alone = newton_schulz(grad[1][0]) * (-0.2 * std::sqrt(4.0));
  EXPECT_LT((moved[1][0] - alone).abs().max().item<float>(), 1e-5);
}

TEST(Groups, PatternsSettleRateDecayAndWhatIsFrozen) {
  OptimizerBase base;
  base.groups = {{.names = "experts.*", .lr_scale = 0.1, .decay = false},
                 {.names = "w", .frozen = true}};
  Param p = Param::of({2, 2}, {});
  EXPECT_EQ(bucket_key(base, {"experts.w1", &p}), (BucketKey{true, false, 0.1}));
  EXPECT_EQ(bucket_key(base, {"other", &p}), (BucketKey{true, true, 1}));
  EXPECT_TRUE(is_frozen(base, "w"));
  EXPECT_FALSE(is_frozen(base, "w2"));
  EXPECT_TRUE(matches("layers.*.w1", "layers.3.experts.w1"));
  EXPECT_FALSE(matches("layers.*.w1", "layers.3.experts.w2"));
}

TEST(Optimizers, ConfigsPrintAndReadBack) {
  OptimizerConfig config = MuonConfig{};
  std::ostringstream os;
  print_config(os, config);
  OptimizerConfig again;
  read_config(parse_yaml(os.str(), "printed"), again);
  EXPECT_TRUE(same(config, again));
  std::get<MuonConfig>(config).betas = {1.5};
  EXPECT_EQ(optimizer_faults(config).size(), 1u);
}

}  // namespace
}  // namespace troupe
