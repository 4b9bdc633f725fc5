// Wraps a dispatcher for status and fault injection: the pulse is in Phase::kDispatch while rows
// travel to their experts and in kCombine while they return, in forward and backward, and the fault
// points "dispatch" and "combine" are reached there. Results are those of the inner dispatcher.
#pragma once

#include <memory>

#include "troupe/core/file/fault.h"
#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/status/pulse.h"

namespace troupe {

// `faults` must outlive it.
std::unique_ptr<Dispatcher> watched_dispatcher(std::unique_ptr<Dispatcher> inner,
                                               std::shared_ptr<Pulse> pulse, const Faults& faults);

}  // namespace troupe
