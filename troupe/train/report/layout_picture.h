// A step as it is forecast, drawn.
#pragma once

#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/report/markup.h"

namespace troupe {

// SVG of the slowest rank's step, one lane per row: what it computes, exchanges and waits for, and
// what runs beside it.
Markup layout_picture(const LayoutForecast& forecast);

}  // namespace troupe
