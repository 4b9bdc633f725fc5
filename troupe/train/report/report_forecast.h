// The report's section on a run's forecast beside what the run took.
#pragma once

#include <cstdint>

#include "troupe/plan/machine.h"
#include "troupe/train/observe/run_log.h"
#include "troupe/train/recipe/recipe.h"
#include "troupe/train/report/markup.h"

namespace troupe {

// Of a run that `ranks` ranks made: medians of the second half of its steps, beside the forecast of
// its layout on `machine`; and the forecast step, drawn. HTML; it holds the run's own numbers alone
// where they were logged.
Markup forecast_section(const Recipe& recipe, int64_t ranks, const Machine& machine,
                        const RunLog& log);

}  // namespace troupe
