#include "troupe/train/optim/state_stream.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "troupe/core/number/moment8.h"
#include "troupe/ops/support/cuda_plugin.h"
#include "troupe/testing/torch/ranks.h"
#include "troupe/train/optim/optimizer.h"

namespace troupe {
namespace {

// Matrices of one window and of several, experts, a norm, and ends within a block.
struct StreamBench {
  StreamBench(const OptimizerConfig& config, at::ScalarType dtype, StateHome home,
              const c10::Device& device = c10::kCPU, const Sharing& sharing = {})
      : optimizer(std::visit([](const auto& c) { return c.build(); }, config)),
        base(base_of(config)),
        store(
            {{"w", &w, 0}, {"norm", &norm, 0}, {"experts", &experts, 1}, {"v", &v, 1}},
            at::TensorOptions(dtype).device(device),
            [&](const NamedParam& p) { return bucket_key(base, p); }, sharing, home) {
    store.initialize_all(1);
    make_state(*optimizer, base.moments, store);
  }

  UpdateStep step_of(const Bucket& b, int64_t n) const {
    return {.step = n,
            .lr = 0.01 * b.key.lr_scale,
            .weight_decay = b.key.decay ? base.weight_decay : 0,
            .grad_scale = at::ones({1}, store.options().dtype(at::kFloat))};
  }

  // `stream`: null, all at once. Equal gradients on all ranks.
  void step(int64_t n, StateStream* stream) {
    store.gradients().begin_step();
    for (size_t s = 0; s < store.slots().size(); ++s) {
      const at::Tensor grad = gradient(*store.slots()[s].named.param, n);
      store.gradients().add(static_cast<int64_t>(s),
                            grad.to(store.slots()[s].named.param->value.options()));
    }
    std::vector<int64_t> all;
    for (size_t i = 0; i < store.buckets().size(); ++i) all.push_back(static_cast<int64_t>(i));
    store.gradients().reduce(all, /*last=*/true);
    store.gradients().end_step();
    const at::NoGradGuard no_grad;
    if (stream != nullptr) {
      return stream->update(store, *optimizer, [&](const Bucket& b) { return step_of(b, n); });
    }
    for (Bucket& b : store.buckets()) optimizer->update(store, b, step_of(b, n));
  }

  // Numbers of every size, the same in each run.
  static at::Tensor gradient(const Param& p, int64_t n) {
    at::Tensor out = at::empty(p.shown, at::kFloat);
    auto* const x = out.mutable_data_ptr<float>();
    for (int64_t i = 0; i < out.numel(); ++i) {
      x[i] = static_cast<float>(std::sin(static_cast<double>((i + 1) * (n + 3))) / (1 + i % 97));
    }
    return out;
  }

  // All that the store has, in one order.
  std::vector<at::Tensor> everything() const {
    std::vector<at::Tensor> out;
    for (const Bucket& b : store.buckets()) {
      for (const at::Tensor& x : b.masters()) out.push_back(x.detach().cpu());
      out.push_back(b.own.detach().cpu());
      for (const at::Tensor& x : b.state) out.push_back(x.cpu());
      for (const at::Tensor& x : b.scales) out.push_back(x.cpu());
    }
    for (const ParamSlot& slot : store.slots()) {
      for (const at::Tensor& x : slot.state) out.push_back(x.cpu());
    }
    return out;
  }

  Param w = Param::of({41, 29}, {.kind = Init::kNormal, .std = 1});
  Param norm = Param::of({7}, {.kind = Init::kOne}, Group::kNoDecay);
  Param experts = Param::of_experts({3, 12, 25}, {.kind = Init::kNormal, .std = 1}, {});
  Param v = Param::of({16, 16}, {.kind = Init::kNormal, .std = 1});
  std::unique_ptr<Optimizer> optimizer;
  OptimizerBase base;
  ParamStore store;
};

void expect_equal(const StreamBench& a, const StreamBench& b, const std::string& what) {
  const std::vector<at::Tensor> own = a.everything(), other = b.everything();
  ASSERT_EQ(own.size(), other.size()) << what;
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(at::equal(own[i], other[i])) << what << ", buffer " << i;
  }
}

template <class Config>
OptimizerConfig with_moments(MomentType moments) {
  Config out;
  out.moments = moments;
  return out;
}

std::vector<OptimizerConfig> optimizers() {
  return {with_moments<AdamWConfig>(MomentType::kF32),
          with_moments<AdamWConfig>(MomentType::kBF16),
          with_moments<AdamWConfig>(MomentType::kInt8),
          with_moments<SgdConfig>(MomentType::kF32),
          with_moments<SgdConfig>(MomentType::kInt8),
          with_moments<LionConfig>(MomentType::kBF16),
          MuonConfig{},
          SoapConfig{},
          AdafactorConfig{}};
}

void ten_steps(const OptimizerConfig& config, at::ScalarType dtype, const c10::Device& device,
               int64_t piece) {
  const std::string what = std::string(config.kind()) + ' ' + to_text(base_of(config).moments) +
                           ' ' + c10::toString(dtype) + " in windows of " + std::to_string(piece);
  StreamBench plain(config, dtype, StateHome::kDevice, device);
  StreamBench streamed(config, dtype, StateHome::kHost, device);
  StateStream stream(device, piece);
  for (int64_t n = 1; n <= 10; ++n) {
    plain.step(n, nullptr);
    streamed.step(n, &stream);
  }
  expect_equal(plain, streamed, what);
}

TEST(StateStream, TenStepsHaveTheSameBits) {
  for (const OptimizerConfig& config : optimizers()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t piece : {256, 700, 1 << 25}) ten_steps(config, dtype, c10::kCPU, piece);
    }
  }
}

TEST(StateStream, TenStepsHaveTheSameBitsOnAGpu) {
  if (!has_cuda()) GTEST_SKIP() << why_no_cuda();
  for (const OptimizerConfig& config : optimizers()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const int64_t piece : {256, 1 << 25}) {
        ten_steps(config, dtype, c10::Device(c10::kCUDA, 0), piece);
      }
    }
  }
}

TEST(StateStream, F64HasMomentsInF64) {
  for (const OptimizerConfig& config :
       {OptimizerConfig(AdamWConfig{}), OptimizerConfig(SgdConfig{})}) {
    ten_steps(config, at::kDouble, c10::kCPU, 256);
  }
}

TEST(StateStream, WindowsCoverEachBucketOnceAndBeginAtBlocks) {
  const StreamBench bench(AdamWConfig{}, at::kBFloat16, StateHome::kHost);
  std::vector<int64_t> ends(bench.store.buckets().size(), 0);
  const std::vector<StateWindow> windows = state_windows(bench.store, *bench.optimizer, 300);
  for (const StateWindow& w : windows) {
    EXPECT_EQ(w.from, ends[w.bucket]);
    EXPECT_EQ(w.from % kMomentBlock, 0);
    EXPECT_TRUE(w.size > 0 && w.size <= 512) << w.size;
    ends[w.bucket] += w.size;
  }
  for (size_t i = 0; i < ends.size(); ++i) EXPECT_EQ(ends[i], bench.store.buckets()[i].own_size);
  EXPECT_GT(windows.size(), ends.size());
}

TEST(StateStream, WholeMatricesAreNotCut) {
  const StreamBench bench(MuonConfig{}, at::kBFloat16, StateHome::kHost);
  for (const StateWindow& w : state_windows(bench.store, *bench.optimizer, 256)) {
    const Bucket& b = bench.store.buckets()[w.bucket];
    if (!b.key.matrix) continue;
    for (const int64_t m : b.members) {
      const ParamSlot& slot = bench.store.slots()[static_cast<size_t>(m)];
      const int64_t begin = slot.offset, end = begin + slot.named.param->numel();
      EXPECT_TRUE((begin >= w.from && end <= w.from + w.size) || end <= w.from ||
                  begin >= w.from + w.size)
          << slot.named.name;
    }
  }
}

// Of two ranks, with state cut between them and whole.
TEST(StateStream, RanksHaveTheSameBits) {
  for (const bool full : {false, true}) {
    for (const bool cut : {false, true}) {
      testing::in_ranks(2, [full, cut](World& world) {
        const auto all = world.all(), one = std::make_shared<ProcessGroup>(world.rank());
        Sharing sharing;
        sharing.alone = false;
        sharing.full = full;
        sharing.meshes.dense[1] = cut ? ShardMesh{all, one, "dense"} : ShardMesh{one, all, "dense"};
        sharing.meshes.experts[1] = sharing.meshes.dense[1];
        for (const OptimizerConfig& config :
             {with_moments<AdamWConfig>(MomentType::kInt8), OptimizerConfig(AdamWConfig{}),
              OptimizerConfig(MuonConfig{})}) {
          StreamBench plain(config, at::kBFloat16, StateHome::kDevice, c10::kCPU, sharing);
          StreamBench streamed(config, at::kBFloat16, StateHome::kHost, c10::kCPU, sharing);
          StateStream stream(c10::kCPU, 256);
          for (int64_t n = 1; n <= 3; ++n) {
            plain.step(n, nullptr);
            streamed.step(n, &stream);
          }
          expect_equal(plain, streamed, std::string(config.kind()));
        }
      });
    }
  }
}

}  // namespace
}  // namespace troupe
