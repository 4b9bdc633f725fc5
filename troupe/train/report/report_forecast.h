// The report's section on a run's forecast beside what the run took.
#pragma once

#include <cstdint>

#include "troupe/plan/machine.h"
#include "troupe/train/observe/run_log.h"
#include "troupe/train/recipe/recipe.h"
#include "troupe/train/report/markup.h"

namespace troupe {

// HTML about a run on `ranks` ranks: medians over the second half of its steps beside the forecast
// for its layout on `machine`, and a drawing of the forecast step. A number that the run did not
// log is left out.
Markup forecast_section(const Recipe& recipe, int64_t ranks, const Machine& machine,
                        const RunLog& log);

}  // namespace troupe
