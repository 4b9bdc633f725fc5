// What this device, and the links between the ranks of this run, reach: the machine file of
// `troupe plan`, measured.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "troupe/distributed/world/world.h"
#include "troupe/plan/machine.h"

namespace troupe {

// Medians of repeated operations in the type that training on the device computes in. All ranks
// call it; the links are measured where there are several, all taken as of one host. What cannot be
// measured so keeps the value that it has in `assumed`.
Machine bench_machine(const c10::Device& device, World& world, const Machine& assumed);

}  // namespace troupe
