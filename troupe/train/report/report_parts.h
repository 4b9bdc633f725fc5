// The parts of the report's page.
#pragma once

#include <string>
#include <vector>

#include "troupe/train/report/report.h"

namespace troupe::report {

// The parts of a report about one run or several; a part is empty if no run logged what it shows.
Markup charts(const std::vector<ReportRun>& runs);
// Sizes, times and scores, a column a run.
Markup summary_table(const std::vector<ReportRun>& runs);
// The values of resolved recipes that are not the same in all runs, a column a run.
Markup recipe_differences(const std::vector<ReportRun>& runs);

Markup expert_maps(const RunLog& log);
// Who goes to which expert: a table a layer, a row an expert.
Markup use_tables(const ExpertUse& use);
Markup sample_table(const RunLog& log);
Markup evaluation_table(const RunLog& log);
Markup event_table(const ReportRun& run);

}  // namespace troupe::report
