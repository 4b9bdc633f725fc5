// Pictures as SVG text, for the report.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe::svg {

struct Line {
  std::string name;
  std::map<int64_t, double> values;  // step -> value
};

// Points beyond 600 a line are thinned to the mean of their neighbours. Values that are not finite,
// or in a logarithmic chart not positive, are left out.
std::string line_chart(const std::string& title, const std::vector<Line>& lines, bool logarithmic);

// columns[time][row]: 0 white, 1 green, 3 and above red. At most 120 columns are drawn.
std::string heat_map(const std::string& title, const std::vector<std::vector<double>>& columns);

// What happened when: a row a lane, a bar each stretch of time, in seconds. Its name is shown under
// the pointer. Bars too narrow to be seen are drawn a third of a point wide.
struct Bar {
  std::string name;
  double begin = 0, end = 0;
};
struct BarRow {
  std::string name;
  std::vector<Bar> bars = {};
};
std::string timeline(const std::string& title, const std::vector<BarRow>& rows);

std::string short_label(double value);  // three or four digits: 3.412, 181k, 2.9e-4

}  // namespace troupe::svg
