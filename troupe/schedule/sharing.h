// What builders share of their third and fourth link: reductions over the ranks that hold the same
// parameters, and the update.
#pragma once

#include <vector>

#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"

namespace troupe {

// Computations and transfers of each rank (compute_order.h, transfers.h).
Schedule work_lists(const StepWork& work);

// For each owner (work.h) the position in `list` behind which its gradients are whole, -1 for
// chunks whose parameters the list does not use.
std::vector<int> last_gradients(const std::vector<Action>& list, const std::vector<int>& owner);

// `list` with a reduction behind each owner's last gradient, and behind the forward that runs
// beside that, or, where not `all`, none. An owner whose parameters are on several ranks is reduced
// behind all that: all of these ranks meet there, and none then waits for another with work left.
std::vector<Action> with_reductions(const std::vector<Action>& list, const StepWork& work,
                                    bool all);

// `list` with the update of each owner during backward (StepWork::updates_in_backward). A reduction
// goes on beside the backward behind it, and the next one waits for it: so gradients of two owners
// are there at most.
std::vector<Action> with_unit_updates(const std::vector<Action>& list, const StepWork& work);

// The step's end: U, then the gathers of the parameters that the list's rank holds, then P; nothing
// without training.
void add_update(std::vector<Action>& list, const StepWork& work, bool gathers);

}  // namespace troupe
