#include "troupe/train/machine/bench_pairs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <sstream>
#include <string>

#include "troupe/distributed/status/process.h"
#include "troupe/ops/support/wait_for_device.h"

namespace troupe {
namespace {

constexpr int kTimes = 3;  // of which the fastest counts
constexpr int64_t kGpuBytes = int64_t{64} << 20, kHostBytes = int64_t{4} << 20;

}  // namespace

// The circle method of round-robin tournaments: the last rank is fixed, the others rotate.
std::vector<int64_t> partners_of(int64_t rank, int64_t size) {
  const int64_t seats = size + size % 2, turning = seats - 1;
  std::vector<int64_t> out;
  for (int64_t round = 0; round < turning; ++round) {
    int64_t other = turning;
    if (rank == turning) {
      other = round;
    } else if (rank != round) {
      other = (2 * round - rank + 2 * turning) % turning;
    }
    out.push_back(other < size ? other : -1);
  }
  return out;
}

std::vector<PairRate> bench_pairs(const c10::Device& device, World& world) {
  const auto options = at::TensorOptions(device).dtype(at::kByte);
  const int64_t bytes = device.is_cpu() ? kHostBytes : kGpuBytes, size = world.size();
  const at::Tensor out = at::zeros({bytes, 1}, options), in = at::empty({bytes, 1}, options);
  const auto all = world.all(), host = world.processors();
  std::ostringstream mine;
  mine << this_process().machine;
  for (const int64_t partner : partners_of(world.rank(), size)) {
    std::vector<int64_t> rows(static_cast<size_t>(size), 0);
    const int64_t n = partner < 0 ? 0 : bytes;
    if (partner >= 0) rows[static_cast<size_t>(partner)] = n;
    double best = std::numeric_limits<double>::infinity();
    for (int time = -1; time < kTimes; ++time) {
      wait_for_device(device);
      host->barrier();
      const auto begin = std::chrono::steady_clock::now();
      all->all_to_all(in.narrow(0, 0, n), out.narrow(0, 0, n), rows, rows).wait();
      wait_for_device(device);
      const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
      if (time >= 0) best = std::min(best, passed.count());
    }
    if (partner > world.rank()) mine << ' ' << partner << ' ' << static_cast<double>(n) / best;
  }
  const std::vector<std::string> texts = world.all_gather_texts("pairs", mine.str());
  std::vector<std::string> machines;
  for (const std::string& text : texts) machines.push_back(text.substr(0, text.find(' ')));
  std::vector<PairRate> pairs;
  for (size_t a = 0; a < texts.size(); ++a) {
    std::istringstream rest(texts[a]);
    std::string machine;
    rest >> machine;
    size_t b = 0;
    for (double rate = 0; rest >> b >> rate;) {
      pairs.push_back(
          {static_cast<int64_t>(a), static_cast<int64_t>(b), machine == machines.at(b), rate});
    }
  }
  return pairs;
}

}  // namespace troupe
