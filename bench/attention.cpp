// Causal attention on one GPU, bf16, forward and backward apart: ours beside PyTorch's flash
// attention, repeatable and not, and cuDNN's through PyTorch.
//
//   attention SEQUENCES TOKENS HEADS [KEY_HEADS [DIM [ROUNDS]]]
//
// All four by turns, round after round; medians count. A line of JSON for each, with how many of 20
// backwards had the bits of the first.
#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/text/median.h"
#include "troupe/ops/attention/attention_cudnn.h"
#include "troupe/ops/attention/attention_sdpa.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

struct Side {
  const char* name;
  bool ours, cudnn, repeatable;
  std::vector<double> forward = {}, backward = {};
};

struct Works {
  std::vector<at::Tensor> x;  // q, k, v
  at::Tensor grad;
  AttentionForm form;
};

Works works_of(const std::vector<int64_t>& n) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const int64_t T = n[0] * n[1];
  Works out{{at::randn({T, n[2], n[4]}, options), at::randn({T, n[3], n[4]}, options),
             at::randn({T, n[3], n[4]}, options)},
            at::randn({T, n[2], n[4]}, options),
            {.scale = 1 / std::sqrt(static_cast<double>(n[4])),
             .lengths = std::vector<int64_t>(n[0], n[1])}};
  for (at::Tensor& x : out.x) x.requires_grad_();
  return out;
}

void choose(const Side& side) {
  at::Context& context = at::globalContext();
  context.setSDPUseCuDNN(side.cudnn);
  context.setSDPUseFlash(!side.cudnn);
  context.setSDPUseMath(false);
  context.setSDPUseMemEfficient(false);
  context.setDeterministicAlgorithms(side.repeatable, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);
}

// Milliseconds of a forward and a backward; the gradients stay in x.
std::pair<double, double> once(const Side& side, Works& w) {
  const c10::impl::VirtualGuardImpl gpu(c10::kCUDA);
  const c10::Stream stream = gpu.getStream({c10::kCUDA, 0});
  std::vector<c10::Event> events;
  for (int i = 0; i < 3; ++i) events.emplace_back(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  for (at::Tensor& x : w.x) x.mutable_grad() = at::Tensor();
  events[0].record(stream);
  const at::Tensor y = side.ours ? attention_cudnn(w.x[0], w.x[1], w.x[2], w.form)
                                 : attention_sdpa(w.x[0], w.x[1], w.x[2], w.form);
  events[1].record(stream);
  y.backward(w.grad);
  events[2].record(stream);
  events[2].synchronize();
  return {events[0].elapsedTime(events[1]), events[1].elapsedTime(events[2])};
}

int same_of_twenty(const Side& side, Works& w) {
  std::vector<at::Tensor> first;
  int same = 0;
  for (int i = 0; i < 21; ++i) {
    once(side, w);
    bool equal = true;
    for (size_t j = 0; j < w.x.size(); ++j) {
      if (i == 0) first.push_back(w.x[j].grad().clone());
      equal &= at::equal(first[j], w.x[j].grad());
    }
    same += i > 0 && equal ? 1 : 0;
  }
  return same;
}

void bench(int argc, char** argv) {
  TROUPE_CHECK(argc >= 4 && argc <= 7,
               "attention SEQUENCES TOKENS HEADS [KEY_HEADS [DIM [ROUNDS]]]");
  std::vector<int64_t> n = {0, 0, 0, 0, 128, 30};
  for (int i = 1; i < argc; ++i) n[i - 1] = std::stoll(argv[i]);
  if (argc < 5) n[3] = n[2];
  TROUPE_CHECK(has_cuda(), "-", why_no_cuda());
  Works w = works_of(n);
  std::vector<Side> sides = {{"troupe (cuDNN, repeatable)", true, true, true},
                             {"PyTorch flash, repeatable", false, false, true},
                             {"PyTorch flash", false, false, false},
                             {"PyTorch cuDNN", false, true, false}};
  for (int64_t round = -3; round < n[5]; ++round) {
    for (Side& side : sides) {
      choose(side);
      const auto [forward, backward] = once(side, w);
      if (round < 0) continue;
      side.forward.push_back(forward);
      side.backward.push_back(backward);
    }
  }
  for (Side& side : sides) {
    choose(side);
    std::printf(
        "{\"sequences\": %lld, \"tokens\": %lld, \"heads\": %lld, \"key_heads\": %lld, \"dim\": "
        "%lld, "
        "\"side\": \"%s\", \"forward_ms\": %.3f, \"backward_ms\": %.3f, \"same_of_20\": %d}\n",
        static_cast<long long>(n[0]), static_cast<long long>(n[1]), static_cast<long long>(n[2]),
        static_cast<long long>(n[3]), static_cast<long long>(n[4]), side.name, median(side.forward),
        median(side.backward), same_of_twenty(side, w));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  try {
    troupe::bench(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
