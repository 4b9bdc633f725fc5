// Rows to all ranks and from them, as many to each: 8 to 1,048,576 rows a rank. Each rank is a
// process (RANK, WORLD_SIZE, ...; bench/all_to_all.py sets them); rank 0 prints a line of JSON with
// the microseconds of the slowest rank by the number of rows, medians.
//
//   all_to_all WIDTH [MOST_ROWS [symmetric]]      rows of bf16
//
// `symmetric`: no collective; ranks read their rows out of each other's memory (symmetric_heap.h).
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "bench/stopwatch.h"
#include "troupe/core/check.h"
#include "troupe/core/text/median.h"
#include "troupe/distributed/group/symmetric_heap.h"
#include "troupe/distributed/world/world.h"
#include "troupe/kernels/peer_rows/peer_rows.h"
#include "troupe/ops/support/run.h"

namespace troupe {
namespace {

constexpr int kRounds = 15, kTimes = 10;

// Rows of `mine`, as many for each rank, into `theirs`.
void exchange(ProcessGroup& all, const at::Tensor& theirs, const at::Tensor& mine) {
  const std::vector<int64_t> each(static_cast<size_t>(all.size()), mine.size(0) / all.size());
  all.all_to_all(theirs, mine, each, each).wait();
}

// The same, of the rows that lie in this rank's part of the transfer.
void read_from_peers(ProcessGroup& all, const at::Tensor& theirs) {
  const auto bytes = static_cast<int64_t>(theirs.nbytes()), part = bytes / all.size();
  const auto transfer = all.heap(theirs.device()).begin(Collective::kAllToAll, bytes);
  transfer->publish();
  transfer->await();
  PeerRows args{.peers = all.size(),
                .each = theirs.size(0) / all.size(),
                .row_bytes = bytes / theirs.size(0),
                .out = static_cast<uint8_t*>(theirs.mutable_data_ptr())};
  for (int64_t w = 0; w < all.size(); ++w) {
    args.from[static_cast<size_t>(w)] = transfer->of(w) + all.rank() * part;
  }
  run(theirs.device(), args, peer_rows_cpu, &CudaKernels::peer_rows);
}

void time_rows(int64_t width, int64_t most, bool symmetric) {
  const LauncherEnvironment place = launcher_environment().value_or(LauncherEnvironment{});
  const c10::Device device = device_here(place);
  const c10::DeviceGuard guard(device);
  World world(place, device, {});
  const auto all = world.all();
  const Stopwatch watch(world);
  std::string out;
  if (symmetric) all->heap(device).reserve(most * width * 2);
  for (int64_t rows = 8; rows <= most; rows *= 2) {
    if (rows % world.size() != 0) continue;
    const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
    const at::Tensor mine = at::zeros({rows, width}, options),
                     theirs = at::empty({rows, width}, options);
    std::vector<double> seconds;
    for (int round = 0; round < kRounds; ++round) {
      seconds.push_back(watch.seconds([&] {
        for (int i = 0; i < kTimes; ++i) {
          symmetric ? read_from_peers(*all, theirs) : exchange(*all, theirs, mine);
        }
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
    const bool symmetric = argc == 4 && std::string(argv[3]) == "symmetric";
    TROUPE_CHECK(argc == 2 || argc == 3 || symmetric, "all_to_all WIDTH [MOST_ROWS [symmetric]]");
    troupe::time_rows(std::stoll(argv[1]), argc > 2 ? std::stoll(argv[2]) : 1 << 20, symmetric);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "all_to_all: %s\n", e.what());
    return 1;
  }
}
