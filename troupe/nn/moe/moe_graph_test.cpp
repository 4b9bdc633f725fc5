// A MoE layer whose experts are on two ranks that read each other's GPU memory: its forward and
// backward wait for nothing on the host, and a CUDA graph of them has the bits of plain calls.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/symmetric_dispatcher.h"
#include "troupe/distributed/group/symmetric_heap.h"
#include "troupe/nn/moe/moe_layer.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_ranks_on_gpus;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kExperts = 8, kWidth = 256, kMost = 512, kInputs = 10;

MoeLayer layer_of(World& world, DispatchMode mode) {
  MoeConfig config;
  config.experts = kExperts;
  config.top_k = 2;
  config.ffn.hidden = 128;
  MoeShape shape = MoeShape::alone(kWidth);
  shape.group_ranks = world.size();
  MoeLayer layer(config, shape,
                 symmetric_dispatcher(world.all(), contiguous(kExperts, world.size()), mode));
  const auto options = at::TensorOptions(world.device()).dtype(at::kBFloat16);
  for_each_param(layer, "moe", [&](const std::string& name, Param& p) {
    p.allocate(p.fp32 ? options.dtype(at::kFloat) : options);
    initialize(p, name, 1);
  });
  return layer;
}

// The same memory in each call: what a graph reads.
class Calls {
 public:
  Calls(World& world, DispatchMode mode, int64_t most)
      : layer_(layer_of(world, mode)), context_{.training = true, .seed = 1, .most_tokens = most} {
    at::manual_seed(3 + static_cast<uint64_t>(world.rank()));
    const auto options = at::TensorOptions(world.device()).dtype(at::kBFloat16);
    const int64_t tokens = kMost - 100 * world.rank();
    for (int64_t i = 0; i < kInputs; ++i) inputs_.push_back(at::randn({tokens, kWidth}, options));
    x_ = at::empty_like(inputs_[0]);
    grad_ = at::randn({tokens, kWidth}, options);
  }

  void give(int64_t input) { x_.copy_(inputs_[static_cast<size_t>(input)]); }

  // Output and gradients of x and the weights.
  Tensors run() {
    const at::Tensor x = x_.detach().clone().requires_grad_();
    const at::Tensor y = layer_.forward(x, {}, context_).y;
    y.backward(grad_);
    Tensors out{y.detach(), x.grad()};
    for_each_param(layer_, "", [&](const std::string&, Param& p) {
      if (p.value.grad().defined()) out.push_back(p.value.grad());
      p.value.mutable_grad().reset();
    });
    return out;
  }

  Tensors of(int64_t input) {
    give(input);
    Tensors out = run();
    layer_.end_of_step();
    return out;
  }
  void end_of_step() { layer_.end_of_step(); }

 private:
  MoeLayer layer_;
  Context context_;
  Tensors inputs_;
  at::Tensor x_, grad_;
};

Tensors copies_of(const Tensors& all) {
  Tensors out;
  for (const at::Tensor& x : all) out.push_back(x.clone());
  return out;
}

void expect_same(const Tensors& got, const Tensors& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::equal(got[i], want[i])) << what << ", tensor " << i;
  }
}

// In a stream of its own, as what is captured has to be.
void in_a_stream(World& world, const std::function<void(SymmetricHeap&)>& body) {
  const c10::cuda::CUDAStreamGuard guard(
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, world.device().index()));
  SymmetricHeap& heap = world.all()->heap(world.device());
  body(heap);
  c10::cuda::device_synchronize();
  heap.check_device();
}

void capture(at::cuda::CUDAGraph& graph, Calls& calls, Tensors& results) {
  c10::cuda::device_synchronize();
  // Other threads look after NCCL and the peers.
  graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  results = calls.run();
  graph.capture_end();
  calls.end_of_step();
}

TEST(MoeGraph, ALayerOverTwoGpusWaitsForNothing) {
  in_ranks_on_gpus({0, 0}, [](World& world) {
    in_a_stream(world, [&](SymmetricHeap&) {
      for (const int64_t most : {kMost, int64_t{0}}) {
        Calls calls(world, DispatchMode::kFast, most);
        for (int64_t i = 0; i < 3; ++i) calls.of(i);  // what is loaded or tuned at a first use
        c10::cuda::device_synchronize();
        c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
        for (int64_t i = 0; i < kInputs; ++i) {
          calls.give(i);
          EXPECT_NO_THROW(calls.run()) << "most " << most;
        }
        EXPECT_ANY_THROW(calls.run()[0].sum().item()) << "it would be seen";
        c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
      }
    });
  });
}

// Replays follow each other without a wait, and plain calls come between them.
TEST(MoeGraph, AGraphOfALayerOverTwoGpusHasTheBitsOfPlainCalls) {
  in_ranks_on_gpus({0, 0}, [](World& world) {
    in_a_stream(world, [&](SymmetricHeap&) {
      for (const DispatchMode mode : {DispatchMode::kFast, DispatchMode::kExact}) {
        for (const int64_t most : {kMost, int64_t{0}}) {
          Calls calls(world, mode, most);
          std::vector<Tensors> want, got;
          for (int64_t i = 0; i < kInputs; ++i) want.push_back(copies_of(calls.of(i)));
          at::cuda::CUDAGraph graph;
          Tensors captured;
          capture(graph, calls, captured);
          for (int64_t round = 0; round < 2; ++round) {
            for (int64_t i = 0; i < kInputs; ++i) {
              calls.give(i);
              graph.replay();
              got.push_back(copies_of(captured));
            }
            got.push_back(copies_of(calls.of(round)));
          }
          c10::cuda::device_synchronize();
          for (int64_t i = 0; i < std::ssize(got); ++i) {
            const int64_t round = i / (kInputs + 1), at = i % (kInputs + 1);
            expect_same(
                got[static_cast<size_t>(i)], want[static_cast<size_t>(at < kInputs ? at : round)],
                to_text(mode) + ", most " + std::to_string(most) + ", call " + std::to_string(i));
          }
        }
      }
    });
  });
}

TEST(MoeGraph, F_AReplayWithoutItsPeerEndsWithE6001) {
  in_ranks_on_gpus({0, -9}, [](World& world) {
    const c10::cuda::CUDAStreamGuard guard(
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, world.device().index()));
    SymmetricHeap& heap = world.all()->heap(world.device());
    Calls calls(world, DispatchMode::kFast, kMost);
    for (int64_t i = 0; i < 3; ++i) calls.of(i);
    at::cuda::CUDAGraph graph;
    Tensors captured;
    capture(graph, calls, captured);
    calls.give(0);
    graph.replay();
    c10::cuda::device_synchronize();
    EXPECT_EQ(heap.gave_up().item<double>(), 0);
    world.all_gather_texts("replayed", "");
    if (world.rank() == 1) ::raise(SIGKILL);
    graph.replay();
    c10::cuda::device_synchronize();
    EXPECT_EQ(heap.gave_up().item<double>(), 1);
    try {
      heap.check_device();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kRankLost) << e.what();
    }
    std::fflush(nullptr);
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);  // a world with a rank less does not close
  });
}

}  // namespace
}  // namespace troupe
