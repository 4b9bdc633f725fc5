#include "troupe/train/report/report_forecast.h"

#include <cmath>
#include <vector>

#include "troupe/train/forecast/forecast.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/report/layout_picture.h"

namespace troupe {
namespace {

double largest(const RunLog& log, const std::string& name) {
  const auto found = log.series.find(name);
  double out = NAN;
  if (found == log.series.end()) return out;
  for (const auto& [step, value] : found->second) out = std::fmax(out, value);
  return out;
}

void row(Markup& os, const std::string& what, double forecast, double measured,
         std::string (*shown)(double)) {
  os << "<tr><td>" << what << "</td><td>" << shown(forecast) << "</td><td>";
  if (std::isfinite(measured)) {
    os << shown(measured) << "</td><td>" << std::lround(100 * forecast / measured) << "%";
  } else {
    os << "not logged</td><td>";
  }
  os << "</td></tr>\n";
}

std::string gib(double bytes) {
  return in_gib(bytes) + " GiB";
}

}  // namespace

Markup forecast_section(const Recipe& recipe, int64_t ranks, const Machine& machine,
                        const RunLog& log) {
  const LayoutForecast f = forecast_layout(recipe, ranks, machine, machine.gpu);
  Markup os;
  os << "<div class=\"wide\"><table><tr><th>" << ranks << " ranks of " << machine.name
     << "</th><th>forecast</th><th>measured</th><th>of it</th></tr>\n";
  row(os, "a step", f.step_seconds, log.usual("step_s"), seconds_text);
  row(os, "forward, backward and what they wait for",
      f.rank.compute + f.rank.exchange + f.rank.exposed + f.rank.bubble,
      log.usual("forward_s") + log.usual("backward_s"), seconds_text);
  row(os, "update", f.rank.update, log.usual("update_s"), seconds_text);
  row(os, "tokens a second", f.tokens_per_second, log.usual("tokens_s"), short_number);
  row(os, "memory of a rank", f.rank.peak.total(),
      largest(log, machine.gpu ? "memory_peak" : "rss"), gib);
  os << "</table></div>\n" << layout_picture(f);
  return os;
}

}  // namespace troupe
