// Rows to all ranks and from them, as many to each: 8 to 1,048,576 rows a rank. Each rank is a
// process (RANK, WORLD_SIZE, ...; bench/all_to_all.py sets them); rank 0 prints a line of JSON with
// the microseconds of the slowest rank by the number of rows, medians.
//
//   all_to_all WIDTH [MOST_ROWS]      rows of bf16
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "bench/stopwatch.h"
#include "troupe/core/check.h"
#include "troupe/core/text/median.h"
#include "troupe/distributed/world/world.h"

namespace troupe {
namespace {

constexpr int kRounds = 15, kTimes = 10;

void run(int64_t width, int64_t most) {
  const LauncherEnvironment place = launcher_environment().value_or(LauncherEnvironment{});
  const c10::Device device = device_here(place);
  const c10::DeviceGuard guard(device);
  World world(place, device, {});
  const auto all = world.all();
  const Stopwatch watch(world);
  std::string out;
  for (int64_t rows = 8; rows <= most; rows *= 2) {
    if (rows % world.size() != 0) continue;
    const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
    const at::Tensor mine = at::zeros({rows, width}, options),
                     theirs = at::empty({rows, width}, options);
    const std::vector<int64_t> each(static_cast<size_t>(world.size()), rows / world.size());
    std::vector<double> seconds;
    for (int round = 0; round < kRounds; ++round) {
      seconds.push_back(watch.seconds([&] {
        for (int i = 0; i < kTimes; ++i) all->all_to_all(theirs, mine, each, each).wait();
      }));
    }
    out += (out.empty() ? "" : ", ") + ('"' + std::to_string(rows)) +
           "\": " + std::to_string(1e6 * median(seconds) / kTimes);
  }
  if (world.rank() == 0) std::printf("{%s}\n", out.c_str());
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  try {
    TROUPE_CHECK(argc == 2 || argc == 3, "all_to_all WIDTH [MOST_ROWS]");
    troupe::run(std::stoll(argv[1]), argc == 3 ? std::stoll(argv[2]) : 1 << 20);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "all_to_all: %s\n", e.what());
    return 1;
  }
}
