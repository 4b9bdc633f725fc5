// Pictures for the report, as HTML with SVG in it. All names are given raw: they are escaped here.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "troupe/train/report/markup.h"

namespace troupe::svg {

struct Line {
  std::string name;
  std::map<int64_t, double> values;  // step -> value
  int color = -1;                    // curves of the same number have one color; -1: its own
  int dashes = 0;                    // 0: none; each number has its own
};

struct Chart {
  std::string title, y;  // "Loss", "loss (nats a token)"
  std::vector<Line> lines;
  bool logarithmic = false;
  std::string x = "step";
};
// A <figure>: title, curves, a legend where there are several, and what all curves say at the step
// under the pointer (by the style sheet alone). Points beyond 600 a line are thinned to the
// mean of their neighbors; lines of few points show them. Values that are not finite, or in a
// logarithmic chart not positive, are left out; empty where nothing is left.
Markup line_chart(const Chart& chart);

// Round numbers, 1, 2 or 5 times a power of ten apart, from `low` to `high`: at most `most`.
std::vector<double> ticks(double low, double high, int most);
// Each with as many digits as tell it from its neighbors: 2.5k, 0.01, 5e-6.
std::vector<std::string> tick_labels(const std::vector<double>& at);

// The class of a heat map's color, as what is filled and as a background: 0 is white, on a dark page
// nearly the page's own, 1 green, 3 and above red.
std::string heat_class(double share);

// What the experts had at a step, in heat_class()'s colors. At most 120 columns are drawn.
struct HeatColumn {
  int64_t step = 0;
  std::vector<double> shares;  // by expert, of the mean
};
Markup heat_map(const std::string& title, const std::vector<HeatColumn>& columns);

// What happened when: a row a lane, a bar each stretch of time, in seconds. Its name is shown under
// the pointer. Bars too narrow to be seen are drawn a third of a point wide. A whole SVG file.
struct Bar {
  std::string name;
  double begin = 0, end = 0;
};
struct BarRow {
  std::string name;
  std::vector<Bar> bars = {};
};
Markup timeline(const std::string& title, const std::vector<BarRow>& rows);

std::string short_label(double value);  // three or four digits: 3.412, 181k, 2.9e-4

// What charts need in a page's <style>: colors of a light page, and of a dark one where the reader's
// system prefers it, for the page too: --page, --ink, --box (behind a text), --edge (of a table).
Markup style();

}  // namespace troupe::svg
