#include "troupe/train/machine/bench_machine.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "troupe/core/text/median.h"
#include "troupe/distributed/dispatch/all_to_all_dispatcher.h"
#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/ops/support/copy_lane.h"
#include "troupe/ops/support/pinned_memory.h"
#include "troupe/ops/support/wait_for_device.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/forecast/mfu.h"
#include "troupe/train/observe/memory_use.h"

namespace troupe {
namespace {

constexpr int kRounds = 7;
constexpr auto kHeating = std::chrono::milliseconds(700);

class Clock {
 public:
  explicit Clock(const c10::Device& device) : device_(device) {}

  // Median seconds of one call, after one that is not timed. A round is `times` calls, so that the
  // cost of launching is small beside it.
  double seconds(int times, const std::function<void()>& call) const {
    call();
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) rounds.push_back(once(times, call));
    return median(std::move(rounds));
  }
  // How much longer the second takes. They alternate, so that a drifting clock affects both.
  double difference(const std::function<void()>& first, const std::function<void()>& second) const {
    first(), second();
    std::vector<double> rounds;
    for (int round = 0; round < kRounds; ++round) {
      const double alone = once(1, first);
      rounds.push_back(once(1, second) - alone);
    }
    return median(std::move(rounds));
  }
  // Seconds of work without communication, timed after a while of load on a GPU: at its power limit
  // the clock is lower than in the first moments.
  double steady_seconds(int times, const std::function<void()>& call) const {
    const auto begin = std::chrono::steady_clock::now();
    while (!device_.is_cpu() && std::chrono::steady_clock::now() - begin < kHeating) {
      for (int i = 0; i < times; ++i) call();
      wait_for_device(device_);
    }
    return seconds(times, call);
  }

 private:
  double once(int times, const std::function<void()>& call) const {
    wait_for_device(device_);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < times; ++i) call();
    wait_for_device(device_);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    return passed.count() / times;
  }
  c10::Device device_;
};

// Sizes whose operations take some milliseconds on the device.
struct Work {
  int64_t matrix, batch, rows, bytes, sequence, heads;
  int times;
  int gathers;       // at once
  double most_lost;  // of a collective's time, by products beside it: readings above are noise
};

Work work_for(const c10::Device& device) {
  if (device.is_cpu()) return {1024, 8, 256, int64_t{64} << 20, 512, 8, 2, 1, 0.9};
  return {8192, 64, 2048, int64_t{1} << 30, 4096, 32, 10, 8, 2.0 / 3};
}

void bench_device(const Clock& clock, const at::TensorOptions& options, const Work& n,
                  Machine& out) {
  out.peak = device_peak(options.device()).value_or(0);
  const auto each = static_cast<double>(n.matrix);
  const at::Tensor a = at::randn({n.matrix, n.matrix}, options);
  out.products = 2 * each * each * each / clock.steady_seconds(n.times, [&] { at::mm(a, a); });
  // Experts: the products of one are narrower.
  const int64_t hidden = n.matrix / 4;
  const at::Tensor x = at::randn({n.batch, n.rows, hidden}, options);
  const at::Tensor w = at::randn({n.batch, hidden, hidden}, options);
  out.experts = 2.0 * static_cast<double>(n.batch * n.rows * hidden * hidden) /
                clock.steady_seconds(n.times, [&] { at::bmm(x, w); });
  const at::Tensor q = at::randn({2, n.heads, n.sequence, 128}, options);
  const double core = 2.0 * 2 * 2 * 128 * static_cast<double>(n.heads) / 2 *
                      static_cast<double>(n.sequence * n.sequence);
  out.attention = core / clock.steady_seconds(n.times, [&] {
    at::scaled_dot_product_attention(q, q, q, {}, 0.0, /*is_causal=*/true);
  });
  const at::Tensor bytes = at::zeros({n.bytes}, options.dtype(at::kByte));
  const at::Tensor copy = at::zeros_like(bytes);
  out.bandwidth = 2.0 * static_cast<double>(n.bytes) /
                  clock.steady_seconds(n.times, [&] { copy.copy_(bytes); });
}

// The line through the times of a small and a large transfer: bandwidth and latency.
struct Line {
  double begin, slope;  // seconds, seconds a byte
};

Line line_of(const Clock& clock, int64_t small, int64_t large,
             const std::function<void(int64_t bytes)>& call) {
  const double near = clock.seconds(10, [&] { call(small); });
  const double far = clock.seconds(2, [&] { call(large); });
  const double slope = std::max(far - near, 1e-9) / static_cast<double>(large - small);
  return {std::max(near - slope * static_cast<double>(small), 0.0), slope};
}

// Times products that take about twice as long as some gathers, alone and beside the gathers. With
// g the time of the gathers they take g k / (1 + k) longer, which gives the contention k.
double contention_of(const Clock& clock, const at::TensorOptions& options, const Work& work,
                     const std::function<Pending()>& gather) {
  const at::Tensor a = at::randn({work.matrix, work.matrix}, options);
  at::Tensor out = at::empty_like(a);
  const auto products = [&](int n) {
    for (int i = 0; i < n; ++i) at::mm_out(out, a, a);
  };
  const auto gathers_beside = [&](int n) {
    std::vector<Pending> under_way;
    for (int i = 0; i < work.gathers; ++i) under_way.push_back(gather());
    products(n);
    for (Pending& one : under_way) one.wait();
  };
  const double g = clock.seconds(1, [&] { gathers_beside(0); });
  const double one = clock.steady_seconds(2, [&] { products(1); });
  const int n = std::max(1, static_cast<int>(std::lround(2 * g / one)));
  const double longer = clock.difference([&] { products(n); }, [&] { gathers_beside(n); });
  const double lost = std::clamp(longer / g, 0.0, work.most_lost);
  return lost / (1 - lost);
}

// Includes the wait of the first collective for the host, and of the host for the device.
double dispatch_of(const Clock& clock, const at::TensorOptions& options, World& world) {
  const int64_t W = world.size();
  const auto dispatcher = all_to_all_dispatcher(world.all(), contiguous(W, W), DispatchMode::kFast);
  const at::Tensor x = at::randn({2 * W, 64}, options);
  const Routed routed{
      .ids_TK = at::arange(2 * W, options.dtype(at::kInt)).remainder(W).unsqueeze(1),
      .scores_TK = at::ones({2 * W, 1}, options.dtype(at::kFloat))};
  return clock.seconds(20, [&] {
    const DispatchedRows rows = dispatcher->begin(x, routed).finish();
    rows.combine(rows.source_SD);
  });
}

void bench_links(const Clock& clock, const at::TensorOptions& options, World& world,
                 const Work& work, bool on_gpu, Machine& out) {
  ProcessGroup& all = *world.all();
  const int64_t W = world.size();
  const int64_t large = (on_gpu ? int64_t{256} : int64_t{16}) << 20;
  const at::Tensor whole = at::zeros({large / 4}, options.dtype(at::kFloat));
  const at::Tensor part = at::zeros({large / 4}, options.dtype(at::kFloat));
  const auto gather = [&](int64_t bytes) {
    const int64_t n = bytes / 4 / W;
    all.all_gather({whole.narrow(0, 0, n * W)}, {part.narrow(0, 0, n)}).wait();
  };
  const auto sum = [&](int64_t bytes) {
    const int64_t n = bytes / 4 / W;
    all.reduce_scatter({part.narrow(0, 0, n)}, {whole.narrow(0, 0, n * W)}).wait();
  };
  const auto exchange = [&](int64_t bytes) {
    const int64_t n = bytes / 4 / W;
    const std::vector<int64_t> each(static_cast<size_t>(W), n);
    const at::Tensor came = part.narrow(0, 0, n * W).unsqueeze(1);
    all.all_to_all(came, whole.narrow(0, 0, n * W).unsqueeze(1), each, each).wait();
  };
  const Line gathers = line_of(clock, 4096, large, gather), sums = line_of(clock, 4096, large, sum),
             exchanges = line_of(clock, 4096, large, exchange);
  const auto others = static_cast<double>(W - 1);
  out.inside = {.bandwidth = others / static_cast<double>(W) / gathers.slope,
                .latency = gathers.begin / others};
  out.summing = sums.slope / gathers.slope;
  out.exchanging = exchanges.slope / gathers.slope;
  out.dispatch = dispatch_of(clock, options, world);
  const int64_t n = large / 4 / W;
  out.contention = contention_of(clock, options, work, [&] {
    return all.all_gather({whole.narrow(0, 0, n * W)}, {part.narrow(0, 0, n)});
  });
}

// Bytes a second each way between the device and locked host memory, while both ways are in use: as
// an update with state in host memory copies (train/optim/state_stream.h).
double host_link_of(const Clock& clock, const c10::Device& device) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const at::Tensor sent = pinned_zeros(kBytes, at::kByte, device),
                   back = pinned_zeros(kBytes, at::kByte, device);
  const at::Tensor came = at::zeros({kBytes}, at::TensorOptions(at::kByte).device(device)),
                   made = at::zeros({kBytes}, at::TensorOptions(at::kByte).device(device));
  CopyLane in(device), out(device);
  const double seconds = clock.seconds(4, [&] {
    const CopyMark arrived = in.run([&] { came.copy_(sent, /*non_blocking=*/true); });
    const CopyMark left = out.run([&] { back.copy_(made, /*non_blocking=*/true); });
    in.wait(arrived);
    out.wait(left);
  });
  return static_cast<double>(kBytes) / seconds;
}

}  // namespace

Machine bench_machine(const c10::Device& device, World& world, const Machine& assumed) {
  const at::NoGradGuard no_grad;
  const bool on_gpu = !device.is_cpu();
  const at::TensorOptions options =
      at::TensorOptions(on_gpu ? at::kBFloat16 : at::kFloat).device(device);
  const Clock clock(device);
  Machine out = assumed;
  out.gpu = on_gpu;
  out.memory =
      on_gpu ? static_cast<double>(memory_use(device).total) : static_cast<double>(host_memory());
  bench_device(clock, options, work_for(device), out);
  if (on_gpu) out.host_link = host_link_of(clock, device);
  out.ranks_per_host = std::max<int64_t>(world.place().local_size, 1);
  if (world.size() > 1) bench_links(clock, options, world, work_for(device), on_gpu, out);
  return out;
}

}  // namespace troupe
