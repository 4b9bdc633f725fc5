// How the MoE layers of a run reach experts on other ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "troupe/core/file/fault.h"
#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/dispatch/dispatcher_config.h"
#include "troupe/distributed/dispatch/turns.h"
#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/params/expert_placement.h"
#include "troupe/distributed/status/pulse.h"
#include "troupe/nn/moe/moe_layer.h"
#include "troupe/train/recipe/parallel.h"

namespace troupe {

// Where a layer's experts are when a run begins: on `ranks` of them, slices and all.
ExpertPlacement placement_of(const ParallelConfig& parallel, int64_t ranks, const MoeConfig& moe);

// Makes each layer's dispatcher between `groups`, with faults (which must stay) on the way. `turns`:
// whose turn it is to compute (parallel.overlap); null: nothing runs beside anything. `by_source`:
// DispatcherOptions.
using DispatcherFactory =
    std::function<std::unique_ptr<Dispatcher>(int64_t layer, const MoeConfig& moe)>;
DispatcherFactory dispatcher_factory(const ParallelConfig& parallel, const NodeGroups& groups,
                                     const std::shared_ptr<Turns>& turns,
                                     const std::shared_ptr<Pulse>& pulse, const Faults& faults,
                                     bool by_source = false);

// f64 scalar on the device: 1 where this rank computed on without rows that a peer did not give
// (SymmetricHeap::gave_up). The result of the step or evaluation is wrong then. `experts`: null
// where each rank has all.
at::Tensor missed_rows(const std::shared_ptr<ProcessGroup>& experts, const c10::Device& device);
// Throws E6001 where `missed`, their number over ranks, is not 0.
void require_rows(const std::shared_ptr<ProcessGroup>& experts, double missed);

}  // namespace troupe
