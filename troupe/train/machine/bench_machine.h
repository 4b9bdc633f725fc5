// Measures this device and the links between this run's ranks, for the machine file of `troupe
// plan`.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "troupe/distributed/world/world.h"
#include "troupe/plan/machine.h"

namespace troupe {

// Medians of repeated operations in the type that training uses on the device. A collective; with
// several ranks it measures the links, as if all were on one host. Values that it cannot measure
// stay as in `assumed`.
Machine bench_machine(const c10::Device& device, World& world, const Machine& assumed);

}  // namespace troupe
