// For the tests of forecasts and layouts.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/train/forecast/find_layouts.h"

namespace troupe {

// What fits into `memory`, with the axes that the recipe leaves open at 1.
inline std::vector<LayoutForecast> layouts_that_fit(const Recipe& recipe, int64_t world,
                                                    const Machine& machine, bool on_gpu,
                                                    double memory) {
  const RanksAtHand ranks{
      .world = world, .per_host = machine.ranks_per_host, .memory = memory, .on_gpu = on_gpu};
  return find_layouts(recipe, ranks, machine, OpenAxes::kLeast).fit;
}

}  // namespace troupe
