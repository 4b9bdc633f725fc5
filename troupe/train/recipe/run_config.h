// The recipe's section `run`: the device, what bits a run has, and how long it waits.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "troupe/core/config/config_traits.h"
#include "troupe/core/config/facts.h"
#include "troupe/core/config/span.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/units.h"
#include "troupe/train/recipe/bits.h"

namespace troupe {

enum class DeviceKind { kAuto, kCpu, kCuda };
constexpr auto names_of(DeviceKind) {
  return std::array{Named{"auto", DeviceKind::kAuto}, Named{"cpu", DeviceKind::kCpu},
                    Named{"cuda", DeviceKind::kCuda}};
}

struct RunConfig {
  DeviceKind device = DeviceKind::kAuto;
  int64_t threads = 0;           // of the CPU; 0: one a core
  bool deterministic = true;     // on a GPU: nothing whose bits differ from run to run
  Bits bits = Bits::kRepeat;     // train/recipe/bits.h
  Duration time_limit = {};      // stops in time to save; 0: none
  Duration grace = seconds(30);  // SIGTERM to SIGKILL, as torchrun and SLURM have it; 0: no end
  Duration start_timeout = seconds(300);  // for all ranks to arrive
  Duration hang_timeout = seconds(600);   // of one operation between ranks
  // How often ranks compare weights that they share; absent: before each save; 0: never.
  std::optional<Span> check_replicas = {};
  std::string machine = {};  // a file of `troupe bench machine`; empty: assumed (plan/machine.h)
  std::string replay = {};  // a folder that log.routing wrote, whose choices are taken; empty: none
  bool trial_kernels = false;  // ops/support/trial_kernels.h
  static void visit(auto& c, auto&& f) {
    f("device", c.device, "Device; auto: a GPU if there is one.");
    f("threads", c.threads, "CPU threads; 0: one per core.", kNotNegative);
    f("deterministic", c.deterministic,
      "GPU: bitwise repeatable runs; false: PyTorch's fastest attention, whose gradients are not. "
      "CPU runs always are.");
    f("bits", c.bits,
      "repeat: the same bits in one layout, by run.deterministic; layout: in every layout (CPU).");
    f("time_limit", c.time_limit, "Time limit: the run saves and stops before it; 0s: none.");
    f("grace", c.grace, "Time from SIGTERM to SIGKILL; slower saves are warned of; 0s: no limit.");
    f("start_timeout", c.start_timeout, "Timeout of the rendezvous of all ranks at the start.");
    f("hang_timeout", c.hang_timeout, "Timeout of one collective; a save may take longer.");
    f("check_replicas", c.check_replicas,
      "Interval of weight comparisons between replicas; null: before each save; 0: never.");
    f("machine", c.machine, "Machine file for the choice of a layout (`troupe bench machine`).");
    f("replay", c.replay,
      "Folder of log.routing whose choices replace those of the routers; empty: none.");
    f("trial_kernels", c.trial_kernels,
      "GPU: kernels on trial, which are not faster everywhere, in place of those that run; other "
      "bits, same bounds.");
  }
};

}  // namespace troupe
