#include "troupe/train/report/layout_picture.h"

#include <vector>

#include "troupe/schedule/text.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/report/svg.h"

namespace troupe {

Markup layout_picture(const LayoutForecast& forecast) {
  std::vector<svg::BarRow> rows;
  for (const auto& [name, lane] : names_of(Lane{})) {
    rows.push_back({std::string(name)});
    for (const TimeSlot& slot : forecast.rank.slots) {
      if (slot.lane == lane)
        rows.back().bars.push_back({to_text(slot.action), slot.begin, slot.end});
    }
  }
  const std::string title = "a step of " + std::to_string(forecast.world) + " ranks, " +
                            seconds_text(forecast.rank.seconds) + ", as forecast";
  return svg::timeline(title, rows);
}

}  // namespace troupe
