#include "troupe/train/optim/optimizer.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "troupe/checkpoint/files/names.h"
#include "troupe/core/config/config.h"
#include "troupe/core/number/moment8.h"
#include "troupe/core/number/split_f32.h"
#include "troupe/train/optim/moments8.h"
#include "troupe/train/params/bad_values.h"
#include "troupe/train/params/master_of_test.h"

namespace troupe {
namespace {

// A few parameters of every sort, in a store.
struct Bench {
  explicit Bench(const OptimizerConfig& config, at::ScalarType dtype = at::kFloat)
      : optimizer(std::visit([](const auto& c) { return c.build(); }, config)),
        base(base_of(config)),
        store({{"w", &w}, {"norm", &norm}, {"experts.w1", &experts}, {"bias", &state}},
              at::TensorOptions(dtype), [&](const NamedParam& p) { return bucket_key(base, p); }) {
    store.initialize_all(1);
    make_state(*optimizer, base.moments, store);
  }

  void step(int64_t n, double grad, double lr = 0.1) {
    store.gradients().begin_step();
    for (size_t s = 0; s < store.slots().size(); ++s) {
      store.gradients().add(static_cast<int64_t>(s),
                            at::full(store.slots()[s].named.param->shown, grad));
    }
    store.gradients().end_step();
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

std::vector<OptimizerConfig> every_kind() {
  return {AdamWConfig{}, SgdConfig{}, LionConfig{}, MuonConfig{}, AdafactorConfig{}, SoapConfig{}};
}

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
  bench.store.gradients().begin_step();
  bench.store.gradients().add(0, at::full({3, 5}, 1.0, at::kBFloat16));
  bench.store.gradients().add(0, at::full({3, 5}, 0x1p-12, at::kBFloat16));
  bench.store.gradients().end_step();
  EXPECT_EQ(bench.store.gradients().of(0)[0].item<float>(),
            1 + 0x1p-12f);  // bf16 would have lost it
  bench.store.gradients().begin_step();
  bench.store.gradients().end_step();
  EXPECT_EQ(bench.store.gradients().of(0).abs().max().item<float>(), 0);
}

TEST(ParamStore, TheFirstGradientIsHeldAndNeverWrittenTo) {
  Bench bench{AdamWConfig{}};
  const at::Tensor first = at::ones({3, 5});
  bench.store.gradients().begin_step();
  bench.store.gradients().add(0, first);
  EXPECT_EQ(bench.store.gradients().of(0).const_data_ptr(), first.const_data_ptr());
  for (int i = 0; i < 2; ++i) bench.store.gradients().add(0, first);
  bench.store.gradients().end_step();
  EXPECT_EQ(bench.store.gradients().of(0).sum().item<float>(), 45);
  EXPECT_EQ(first.sum().item<float>(), 15);
}

// Two parameters may get one tensor from backward: c = a + b.
TEST(Optimizers, NoneWritesToAGradient) {
  for (const OptimizerConfig& config : every_kind()) {
    Bench bench{config};
    const at::Tensor grad = at::ones({3, 5});
    bench.store.gradients().begin_step();
    bench.store.gradients().add(0, grad);
    bench.store.gradients().end_step();
    const at::NoGradGuard no_grad;
    for (Bucket& b : bench.store.buckets()) {
      bench.optimizer->update(bench.store, b, {.lr = 1, .grad_scale = at::full({1}, 0.5)});
    }
    EXPECT_TRUE(at::equal(grad, at::ones({3, 5})));
  }
}

TEST(ParamStore, F111_NamesTheExpertWithTheBadGradient) {
  Bench bench{AdamWConfig{}};
  bench.store.gradients().begin_step();
  at::Tensor grad = at::zeros({2, 2, 3, 4});
  grad[1][0][2][3] = std::numeric_limits<float>::quiet_NaN();
  bench.store.gradients().add(2, grad);
  bench.store.gradients().end_step();
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
  for (const OptimizerConfig& config : every_kind()) {
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

// A bf16 model in 20 steps, beside the same parameters in f32 with the same gradients.
TEST(Optimizers, MastersInHalvesHaveTheBitsOfWholeOnes) {
  for (const OptimizerConfig& config : every_kind()) {
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

// PyTorch's operators for any device, and core/number/split_f32.h.
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

TEST(Optimizers, CodedMomentsTakeAByteAndStayNear) {
  for (OptimizerConfig config : {OptimizerConfig(AdamWConfig{}), OptimizerConfig(SgdConfig{}),
                                 OptimizerConfig(LionConfig{})}) {
    Bench whole{config, at::kBFloat16};
    std::visit([](auto& c) { c.moments = MomentType::kInt8; }, config);
    Bench coded{config, at::kBFloat16};
    std::vector<at::Tensor> before;
    for (const Bucket& b : coded.store.buckets()) before.push_back(master_of(b));
    for (int64_t n = 1; n <= 50; ++n) {
      const double grad = 1 + 0.3 * std::cos(static_cast<double>(n));
      coded.step(n, grad, 1e-3), whole.step(n, grad, 1e-3);
    }
    for (size_t i = 0; i < coded.store.buckets().size(); ++i) {
      const Bucket &a = coded.store.buckets()[i], &b = whole.store.buckets()[i];
      EXPECT_EQ(a.state[0].element_size(), 1);
      EXPECT_EQ(a.scales[0].numel(), a.own_size / 256);
      const at::Tensor x = master_of(a), y = master_of(b);
      const double moved = (y - before[i]).abs().max().item<double>();
      EXPECT_LT((x - y).abs().max().item<double>(), 0.05 * moved) << config.kind();
      EXPECT_FALSE(at::equal(x, y) && config.kind() == "adamw");
    }
  }
}

// The operators of train/optim/moments8.h beside core/number/moment8.h.
TEST(Optimizers, CodesAreThoseOfTheFormula) {
  for (const bool second : {false, true}) {
    for (const bool dithered : {false, true}) {
      constexpr int64_t kSize = 3 * 256 + 77;
      at::Tensor x = at::randn({kSize}) * at::randn({kSize}).exp();
      if (second) x = x.square();
      x.narrow(0, 256, 256).zero_();
      x[10] = 0;
      x[600] = std::numeric_limits<float>::quiet_NaN();
      const at::Tensor codes = at::zeros({kSize}, at::kByte), scales = at::zeros({4});
      code_moments(x, codes, scales, second, dithered);
      const at::Tensor back = moments_of(codes, scales, second);
      const auto* const from = x.const_data_ptr<float>();
      for (int64_t block = 0; block < 4; ++block) {
        const int64_t end = std::min(kSize, (block + 1) * 256);
        uint32_t largest = 0;
        for (int64_t i = block * 256; i < end; ++i) {
          largest = std::max(largest, std::bit_cast<uint32_t>(std::abs(from[i])));
        }
        const float scale = moment_scale(largest), inverse = moment_inverse(scale);
        ASSERT_EQ(std::bit_cast<uint32_t>(scales[block].item<float>()),
                  std::bit_cast<uint32_t>(scale));
        for (int64_t i = block * 256; i < end && block != 2; ++i) {
          const MomentDither d =
              dithered ? moment_dither(from[i], from[i]) : MomentDither{kToNearest, kToNearest};
          const uint8_t want = second ? second_moment_code(from[i], inverse, d.second)
                                      : first_moment_code(from[i], inverse, d.first);
          ASSERT_EQ(codes.const_data_ptr<uint8_t>()[i], want) << i << ' ' << from[i];
          ASSERT_EQ(back.const_data_ptr<float>()[i],
                    second ? second_moment(want, scale) : first_moment(want, scale));
        }
      }
      EXPECT_TRUE(at::isnan(back.narrow(0, 512, 256)).all().item<bool>());
    }
  }
}

// Independent of PyTorch's operators: plain loops in double, a matrix at a time.
struct AdafactorLoops {
  AdafactorLoops(int64_t rows, int64_t columns)
      : R(rows), C(columns), row(static_cast<size_t>(R)), column(static_cast<size_t>(C)) {}

  void step(std::vector<double>& p, const std::vector<double>& g, int64_t n, double lr,
            double decay) {
    const double w = std::pow(static_cast<double>(n), -0.8);
    std::vector<double> u(p.size());
    double mean = 0, p2 = 0, u2 = 0;
    const auto of = [&](const std::vector<double>& x, int64_t r, int64_t c) {
      return x[static_cast<size_t>(r * C + c)];
    };
    for (int64_t r = 0; r < R; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < C; ++c) sum += of(g, r, c) * of(g, r, c);
      double& x = row[static_cast<size_t>(r)];
      x = (1 - w) * x + w * sum / static_cast<double>(C);
      mean += x / static_cast<double>(R);
    }
    for (int64_t c = 0; c < C; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < R; ++r) sum += of(g, r, c) * of(g, r, c);
      double& x = column[static_cast<size_t>(c)];
      x = (1 - w) * x + w * sum / static_cast<double>(R);
    }
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t c = 0; c < C; ++c) {
        const double v =
            row[static_cast<size_t>(r)] * column[static_cast<size_t>(c)] / std::max(mean, 0x1p-23);
        u[static_cast<size_t>(r * C + c)] = of(g, r, c) / std::sqrt(std::max(v, 0x1p-46));
      }
    }
    const auto size = static_cast<double>(p.size());
    for (size_t i = 0; i < p.size(); ++i) p2 += p[i] * p[i] / size, u2 += u[i] * u[i] / size;
    const double rate =
        std::min(lr, 1 / std::sqrt(static_cast<double>(n))) * std::max(1e-3, std::sqrt(p2));
    for (size_t i = 0; i < p.size(); ++i) {
      p[i] = p[i] * (1 - lr * decay) - rate * u[i] / std::max(1.0, std::sqrt(u2));
    }
  }
  int64_t R, C;
  std::vector<double> row, column;
};

std::vector<double> doubles(const at::Tensor& x) {
  const at::Tensor y = x.detach().to(at::kDouble).contiguous().view(-1);
  return {y.const_data_ptr<double>(), y.const_data_ptr<double>() + y.numel()};
}

at::Tensor random_grad(const std::vector<int64_t>& sizes, int64_t n) {
  at::manual_seed(static_cast<uint64_t>(n) * 100 + sizes.size());
  return at::randn(sizes);
}

// 20 steps of f(parameter's matrix, its gradient, step) beside the optimizer's.
struct Matrix {
  int64_t slot, rows, columns;
  double bound;
};
template <class F>
void expect_steps(Bench& bench, const Matrix& of, F&& f) {
  const auto& [slot, R, C, bound] = of;
  const Param& param = *bench.store.slots()[static_cast<size_t>(slot)].named.param;
  const auto each = static_cast<size_t>(R * C);
  std::vector<double> all = doubles(param.value);
  for (int64_t n = 1; n <= 20; ++n) {
    bench.store.gradients().begin_step();
    const at::Tensor grad = random_grad(param.shown, n);
    bench.store.gradients().add(slot, grad);
    bench.store.gradients().end_step();
    const at::NoGradGuard no_grad;
    for (Bucket& b : bench.store.buckets()) {
      bench.optimizer->update(
          bench.store, b,
          {.step = n, .lr = 0.05, .weight_decay = 0.1, .grad_scale = at::ones({1})});
    }
    const std::vector<double> g = doubles(grad);
    for (size_t at = 0; at < all.size(); at += each) {
      std::vector<double> p(all.begin() + static_cast<std::ptrdiff_t>(at),
                            all.begin() + static_cast<std::ptrdiff_t>(at + each));
      const std::vector<double> own(g.begin() + static_cast<std::ptrdiff_t>(at),
                                    g.begin() + static_cast<std::ptrdiff_t>(at + each));
      f(at / each, p, own, n);
      std::copy(p.begin(), p.end(), all.begin() + static_cast<std::ptrdiff_t>(at));
    }
    const std::vector<double> got = doubles(param.value);
    for (size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(got[i], all[i], bound) << n << ' ' << i;
  }
}

TEST(Adafactor, IsItsFormulaInDouble) {
  Bench bench{AdafactorConfig{}};
  std::vector<AdafactorLoops> experts(4, AdafactorLoops(3, 4));
  expect_steps(bench, {2, 3, 4, 2e-5}, [&](size_t i, auto& p, const auto& g, int64_t n) {
    experts[i].step(p, g, n, 0.05, 0.1);
  });
  EXPECT_EQ(bench.store.slots()[2].state[0].sizes(), (std::vector<int64_t>{2, 2, 3}));
  EXPECT_EQ(bench.store.slots()[2].state[1].sizes(), (std::vector<int64_t>{2, 2, 4}));
  EXPECT_TRUE(bench.store.buckets()[0].state.empty());  // no moments of each element
}

// A vector's V is that of a matrix of one row whose columns are kept: row mean and all cancel.
TEST(Adafactor, AVectorKeepsEachSquare) {
  Bench bench{AdafactorConfig{}};
  std::vector<double> v(7);
  expect_steps(bench, {1, 1, 7, 2e-5}, [&](size_t, auto& p, const auto& g, int64_t n) {
    double p2 = 0, u2 = 0;
    std::vector<double> u(7);
    const double w = std::pow(static_cast<double>(n), -0.8);
    for (size_t i = 0; i < 7; ++i) {
      v[i] += w * (g[i] * g[i] - v[i]);
      u[i] = g[i] / std::sqrt(std::max(v[i], 0x1p-46));
      p2 += p[i] * p[i] / 7, u2 += u[i] * u[i] / 7;
    }
    const double rate =
        std::min(0.05, 1 / std::sqrt(static_cast<double>(n))) * std::max(1e-3, std::sqrt(p2));
    for (size_t i = 0; i < 7; ++i) {
      p[i] = p[i] * (1 - 0.05 * 0.1) - rate * u[i] / std::max(1.0, std::sqrt(u2));
    }
  });
}

// The paper's formula in double, a matrix at a time. Eigenvectors have no sign, and need none: the
// step is the same for either.
struct SoapLoops {
  at::Tensor m, v, left, right, ql, qr;

  at::Tensor step(const at::Tensor& p, const at::Tensor& g, int64_t n, int64_t every) {
    const auto keep = [](at::Tensor& x, const at::Tensor& y, double b) {
      x = x.defined() ? x * b + y * (1 - b) : y * (1 - b);
    };
    const auto t = static_cast<double>(n - 1);
    at::Tensor out = p * (1 - 0.05 * 0.1);
    if (n > 1) {
      const at::Tensor turned = ql.t().matmul(g).matmul(qr);
      keep(m, g, 0.9), keep(v, turned * turned, 0.95);
      const at::Tensor top = ql.t().matmul(m).matmul(qr) / (1 - std::pow(0.9, t));
      const at::Tensor move = top / ((v / (1 - std::pow(0.95, t))).sqrt() + 1e-8);
      out = out - ql.matmul(move).matmul(qr.t()) * 0.05;
    }
    keep(left, g.matmul(g.t()), 0.95), keep(right, g.t().matmul(g), 0.95);
    if (n == 1) {
      ql = std::get<1>(at::linalg_eigh(left)), qr = std::get<1>(at::linalg_eigh(right));
    } else if (n % every == 0) {
      ql = std::get<0>(at::linalg_qr(left.matmul(ql)));
      qr = std::get<0>(at::linalg_qr(right.matmul(qr)));
    }
    return out;
  }
};

TEST(Soap, IsItsFormulaInDouble) {
  SoapConfig config;
  config.every = 3;
  Bench bench{config};
  std::vector<SoapLoops> experts(4);
  expect_steps(bench, {2, 3, 4, 2e-3}, [&](size_t i, auto& p, const auto& g, int64_t n) {
    const auto tensor = [](const std::vector<double>& x) {
      return at::tensor(x, at::kDouble).view({3, 4});
    };
    p = doubles(experts[i].step(tensor(p), tensor(g), n, 3));
  });
  // Q is orthogonal, each matrix's own.
  const at::Tensor q = bench.store.slots()[2].state[1];
  EXPECT_EQ(q.sizes(), (std::vector<int64_t>{2, 2, 3, 3}));
  const at::Tensor unit = q.transpose(-2, -1).matmul(q);
  EXPECT_LT((unit - at::eye(3)).abs().max().item<float>(), 1e-5);
}

TEST(Soap, WithoutFactorsItIsAdam) {
  SoapConfig config;
  config.max_side = 0;
  AdamWConfig adamw;
  Bench a{config}, b{adamw};
  a.step(1, 0.7, 0);  // its first looks only
  for (int64_t n = 1; n <= 5; ++n) {
    a.step(n + 1, std::cos(static_cast<double>(n))), b.step(n, std::cos(static_cast<double>(n)));
  }
  EXPECT_TRUE(a.store.slots()[2].state.empty());
  EXPECT_LT((a.experts.value - b.experts.value).abs().max().item<float>(), 1e-5);
}

TEST(Optimizers, RefusesMomentsThatAKindHasNot) {
  MuonConfig muon;
  muon.moments = MomentType::kInt8;
  EXPECT_EQ(optimizer_faults(muon).size(), 1u);
  AdafactorConfig adafactor;
  adafactor.moments = MomentType::kBF16;
  EXPECT_EQ(optimizer_faults(adafactor).size(), 1u);
  SoapConfig soap;
  soap.every = 0;
  EXPECT_EQ(optimizer_faults(soap).size(), 1u);
  LionConfig lion;
  lion.moments = MomentType::kInt8;
  EXPECT_TRUE(optimizer_faults(lion).empty());
}

TEST(Muon, NewtonSchulzBringsSingularValuesNearOne) {
  Param p = Param::of({2, 6, 8}, {.kind = Init::kNormal, .std = 1});
  initialize(p, "x", 1);
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
  bench.store.gradients().begin_step();
  at::Tensor grad = at::zeros({2, 2, 3, 4});
  grad[1][0] = (at::arange(12.0) * 0.9).cos().view({3, 4});
  bench.store.gradients().add(2, grad);
  bench.store.gradients().end_step();
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
