// Whether this machine is fit to join a run: its clock, link, disk, memory and GPUs, each measured
// in seconds and compared with a bound. `troupe launch --check-machine` keeps a machine that is not
// out of the run; `troupe doctor` warns.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/file/fault.h"
#include "troupe/core/text/units.h"
#include "troupe/distributed/world/link_check.h"
#include "troupe/train/machine/finding.h"

namespace troupe {

// Far from what a good machine measures, so that a busy one passes.
struct MachineBounds {
  Duration clock = seconds(5), round_trip = seconds(1);
  Bytes link{1'000'000}, disk{5'000'000};  // a second
  Bytes memory{int64_t{256} << 20}, gpu_memory = gib(1);
  double gpu_speed = 0.7;
  Duration wait = minutes(5), time = minutes(1);

  static void visit(auto& b, auto&& f) {
    f("clock", b.clock, "Largest difference between this machine's clock and the host's.");
    f("round_trip", b.round_trip, "Longest round trip to the host.");
    f("link", b.link, "Least bytes per second to the host and back.");
    f("disk", b.disk, "Least bytes per second written and synced, and read, in the run's folder.");
    f("memory", b.memory, "Least free host memory.");
    f("gpu_memory", b.gpu_memory, "Least free memory of each GPU.");
    f("gpu_speed", b.gpu_speed,
      "Least speed of a GPU relative to this machine's fastest (0 to 1).");
    f("wait", b.wait, "Longest wait for the host to answer.");
    f("time", b.time, "Longest time of all checks together.");
  }
};
void validate(const MachineBounds& bounds);  // E2005

struct MachineToCheck {
  std::string folder = ".";  // the run's, which need not exist
  std::string host = {};     // that clock and link are checked against; empty: neither is
  int port = 0;
  bool gpus = true;  // whether the run computes on them
  MachineBounds bounds = {};
};

// Calls `begins` before each check with what is checked, and `found` after it. In this order:
// clock, link, disk, memory, GPUs. Writes a file of 4 MiB into the folder, or the nearest one above
// it that exists, and removes it. Faults are at the points "check.link" and "check.disk".
void check_machine(const MachineToCheck& machine, const Faults& faults,
                   const std::function<void(const std::string& what)>& begins,
                   const std::function<void(const Finding&)>& found);

std::string nearest_folder(const std::string& folder);  // that exists: itself or one above it

// The single checks, on given numbers.
struct DiskSpeed {
  double write = 0, read = 0;  // bytes a second; writing includes fsync
};
struct GpuMeasure {
  int64_t free = 0;          // bytes
  double speed = 0;          // FLOP/s of bf16 products
  std::string failure = {};  // why it does not answer
};
Finding judge_host_clock(double ahead, const MachineBounds& bounds);
Finding judge_link(const LinkMeasure& link, const MachineBounds& bounds);
Finding judge_disk_speed(const std::string& folder, const DiskSpeed& speed,
                         const MachineBounds& bounds);
Finding judge_free_memory(int64_t free, const MachineBounds& bounds);
std::vector<Finding> judge_gpus(const std::vector<GpuMeasure>& gpus, const MachineBounds& bounds);
// From lines of nvidia-smi, "INDEX, COUNT"; a count that is no number says nothing.
std::vector<Finding> judge_ecc_errors(std::string_view lines);

}  // namespace troupe
