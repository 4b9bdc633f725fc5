// A dispatcher that says when it is at work: the pulse is in Phase::kDispatch while rows go to
// their experts and in kCombine while they come back, in forward and in backward, and the fault
// points "dispatch" and "combine" are there. It computes what the inner one does.
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
