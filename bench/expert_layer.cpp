// One MoE layer over ranks, forward and backward, timed as a whole: routing, counts, rows there and
// back, products. Each rank is a process (RANK, WORLD_SIZE, ...; `troupe launch` or
// bench/expert_parallel.py sets them); rank 0 prints a line of JSON with the median seconds of the
// slowest rank.
//
//   expert_layer TOKENS WIDTH HIDDEN EXPERTS TOP_K fast|exact a2a|allgather|symmetric [rounds]
//
// TOKENS are this rank's. bf16 on a GPU, f32 on the CPU; tokens, weights and gradients random, the
// router's choices near even.
#include <ATen/ops/randn.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "bench/stopwatch.h"
#include "troupe/core/check.h"
#include "troupe/core/text/median.h"
#include "troupe/distributed/dispatch/all_gather_dispatcher.h"
#include "troupe/distributed/dispatch/all_to_all_dispatcher.h"
#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/dispatch/symmetric_dispatcher.h"
#include "troupe/distributed/world/world.h"
#include "troupe/nn/moe/moe_layer.h"

namespace troupe {
namespace {

struct Arguments {
  int64_t tokens, width, hidden, experts, top_k;
  std::string mode, kind;
  int64_t rounds = 20;
};

Arguments arguments_of(int argc, char** argv) {
  TROUPE_CHECK(argc == 8 || argc == 9,
               "expert_layer TOKENS WIDTH HIDDEN EXPERTS TOP_K fast|exact KIND [rounds]");
  const auto number = [&](int i) { return int64_t{std::stoll(argv[i])}; };
  Arguments a{number(1), number(2), number(3), number(4), number(5), argv[6], argv[7]};
  if (argc == 9) a.rounds = number(8);
  TROUPE_CHECK(a.mode == "fast" || a.mode == "exact", "mode", a.mode, "is not fast or exact");
  return a;
}

std::unique_ptr<Dispatcher> dispatcher_of(const Arguments& a, World& world,
                                          const ExpertPlacement& placement) {
  const DispatchMode mode = a.mode == "fast" ? DispatchMode::kFast : DispatchMode::kExact;
  if (a.kind == "a2a") return all_to_all_dispatcher(world.all(), placement, mode);
  if (a.kind == "allgather") return all_gather_dispatcher(world.all(), placement, mode);
  TROUPE_CHECK(a.kind == "symmetric", "kind", a.kind, "is not a2a, allgather or symmetric");
  return symmetric_dispatcher(world.all(), placement, mode);
}

MoeLayer layer_of(const Arguments& a, World& world, const at::TensorOptions& options) {
  const ExpertPlacement placement = contiguous(a.experts, world.size());
  MoeConfig config;
  config.experts = a.experts;
  config.top_k = a.top_k;
  config.ffn.hidden = a.hidden;
  MoeShape shape = MoeShape::alone(a.width);
  shape.group_ranks = world.size();
  MoeLayer layer(config, shape, dispatcher_of(a, world, placement));
  for_each_param(layer, "moe", [&](const std::string& name, Param& p) {
    p.allocate(p.fp32 ? options.dtype(at::kFloat) : options);
    initialize(p, name, 1);
  });
  return layer;
}

void run(const Arguments& a) {
  const LauncherEnvironment place = launcher_environment().value_or(LauncherEnvironment{});
  const c10::Device device = device_here(place);
  const c10::DeviceGuard guard(device);
  World world(place, device, {});
  const auto options =
      at::TensorOptions(device).dtype(device.is_cpu() ? at::kFloat : at::kBFloat16);
  MoeLayer layer = layer_of(a, world, options);
  at::Tensor x = at::randn({a.tokens, a.width}, options).mul_(0.2).requires_grad_();
  const at::Tensor grad = at::randn({a.tokens, a.width}, options).mul_(0.2);
  const Context context{.training = true, .seed = 1};
  const Stopwatch watch(world);
  std::vector<double> forward, both;
  for (int64_t round = 0; round < a.rounds + 3; ++round) {
    const double f = watch.seconds([&] { layer.forward(x, {}, context); });
    const double b = watch.seconds([&] { layer.forward(x, {}, context).y.backward(grad); });
    x.mutable_grad().reset();
    for_each_param(layer, "", [](const std::string&, Param& p) { p.value.mutable_grad().reset(); });
    layer.end_of_step();
    if (round < 3) continue;
    forward.push_back(f);
    both.push_back(b);
  }
  if (world.rank() != 0) return;
  std::printf("{\"side\": \"troupe %s %s\", \"forward_ms\": %.3f, \"both_ms\": %.3f}\n",
              a.kind.c_str(), a.mode.c_str(), 1e3 * median(forward), 1e3 * median(both));
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  try {
    troupe::run(troupe::arguments_of(argc, argv));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "expert_layer: %s\n", e.what());
    return 1;
  }
}
