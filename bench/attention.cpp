// Causal attention on one GPU, bf16, forward and backward apart: ours beside PyTorch's flash
// attention, repeatable and not, and cuDNN's through PyTorch.
//
//   attention SEQUENCES TOKENS HEADS [KEY_HEADS [DIM [ROUNDS [RANKS]]]]
//
// With RANKS above 1 it is what the first of so many context ranks has of the sequences: first and
// last chunk of each, which see no past and all of it. PyTorch's is then a call for each chunk by a
// mask, as ours was before cuDNN's, and flash attention whose last query sees the last key.
//
// All by turns, round after round; medians count. A line of JSON for each, with how many of 20
// backwards had the bits of the first.
#include <ATen/Context.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/cat.h>
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
  enum { kOurs, kSdpa, kFlash } how;
  bool cudnn, repeatable;
  std::vector<double> forward = {}, backward = {};
};

struct Works {
  std::vector<at::Tensor> x;  // q, k, v
  at::Tensor grad;
  AttentionForm form;
};

Works works_of(const std::vector<int64_t>& n) {
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const int64_t P = n[0] * n[1], T = P / n[6], chunk = n[1] / n[6] / 2;
  Works out{{at::randn({T, n[2], n[4]}, options), at::randn({P, n[3], n[4]}, options),
             at::randn({P, n[3], n[4]}, options)},
            at::randn({T, n[2], n[4]}, options),
            {.scale = 1 / std::sqrt(static_cast<double>(n[4]))}};
  if (n[6] == 1) out.form.lengths.assign(n[0], n[1]);
  for (int64_t b = 0; n[6] > 1 && b < n[0]; ++b) {
    out.form.segments.push_back({2 * b * chunk, chunk, b * n[1], 0});
    out.form.segments.push_back({(2 * b + 1) * chunk, chunk, b * n[1], n[1] - chunk});
  }
  for (at::Tensor& x : out.x) x.requires_grad_();
  return out;
}

void choose(const Side& side) {
  at::Context& context = at::globalContext();
  context.setSDPUseCuDNN(side.cudnn);
  context.setSDPUseFlash(!side.cudnn);
  context.setSDPUseMath(false);
  context.setSDPUseMemEfficient(side.how == Side::kSdpa && !side.cudnn);
  context.setDeterministicAlgorithms(side.repeatable, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);
}

// A call for the first chunks of all rows, and one for the last.
at::Tensor flash_by_chunks(const Works& w) {
  const auto& segments = w.form.segments;
  const int64_t B = std::ssize(segments) / 2;
  std::vector<at::Tensor> out;
  for (const AttentionSegment& s : {segments[0], segments[1]}) {
    const auto rows = [&](const at::Tensor& x, int64_t first, int64_t n) {
      return x.unflatten(0, {B, -1}).narrow(1, first, n).transpose(1, 2);
    };
    const at::Tensor o = std::get<0>(at::_scaled_dot_product_flash_attention(
        rows(w.x[0], s.q, s.rows), rows(w.x[1], s.k, s.keys), rows(w.x[2], s.k, s.keys), 0.0,
        /*is_causal=*/true, false, w.form.scale));
    out.push_back(o.transpose(1, 2));
  }
  return at::cat(out, 1).flatten(0, 1);
}

at::Tensor forward_of(const Side& side, const Works& w) {
  if (side.how == Side::kFlash) return flash_by_chunks(w);
  return side.how == Side::kOurs ? attention_cudnn(w.x[0], w.x[1], w.x[2], w.form)
                                 : attention_sdpa(w.x[0], w.x[1], w.x[2], w.form);
}

// Milliseconds of a forward and a backward; the gradients stay in x.
std::pair<double, double> once(const Side& side, Works& w) {
  const c10::impl::VirtualGuardImpl gpu(c10::kCUDA);
  const c10::Stream stream = gpu.getStream({c10::kCUDA, 0});
  std::vector<c10::Event> events;
  for (int i = 0; i < 3; ++i) events.emplace_back(c10::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  for (at::Tensor& x : w.x) x.mutable_grad() = at::Tensor();
  events[0].record(stream);
  const at::Tensor y = forward_of(side, w);
  events[1].record(stream);
  y.backward(w.grad);
  events[2].record(stream);
  events[2].synchronize();
  return {events[0].elapsedTime(events[1]), events[1].elapsedTime(events[2])};
}

// PyTorch has no kernel by mask for grouped heads.
bool runs(const Side& side, Works& w) {
  choose(side);
  try {
    once(side, w);
    return true;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    std::fprintf(stderr, "%s: %s\n", side.name, what.substr(0, what.find('\n')).c_str());
    return false;
  }
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
  TROUPE_CHECK(argc >= 4 && argc <= 8,
               "attention SEQUENCES TOKENS HEADS [KEY_HEADS [DIM [ROUNDS [RANKS]]]]");
  std::vector<int64_t> n = {0, 0, 0, 0, 128, 30, 1};
  for (int i = 1; i < argc; ++i) n[i - 1] = std::stoll(argv[i]);
  if (argc < 5) n[3] = n[2];
  TROUPE_CHECK(has_cuda(), "-", why_no_cuda());
  Works w = works_of(n);
  std::vector<Side> sides = {{"troupe (cuDNN, repeatable)", Side::kOurs, true, true}};
  if (n[6] == 1) {
    sides.insert(sides.end(), {{"PyTorch flash, repeatable", Side::kSdpa, false, true},
                               {"PyTorch flash", Side::kSdpa, false, false},
                               {"PyTorch cuDNN", Side::kSdpa, true, false}});
  } else {
    sides.insert(sides.end(), {{"PyTorch by mask, repeatable", Side::kSdpa, false, true},
                               {"PyTorch by mask", Side::kSdpa, false, false},
                               {"PyTorch by mask, cuDNN", Side::kSdpa, true, false},
                               {"PyTorch flash, repeatable", Side::kFlash, false, true},
                               {"PyTorch flash", Side::kFlash, false, false}});
  }
  std::erase_if(sides, [&](const Side& side) { return !runs(side, w); });
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
        "%lld, \"ranks\": %lld, \"side\": \"%s\", \"forward_ms\": %.3f, \"backward_ms\": %.3f, "
        "\"same_of_20\": %d}\n",
        static_cast<long long>(n[0]), static_cast<long long>(n[1]), static_cast<long long>(n[2]),
        static_cast<long long>(n[3]), static_cast<long long>(n[4]), static_cast<long long>(n[6]),
        side.name, median(side.forward), median(side.backward), same_of_twenty(side, w));
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
