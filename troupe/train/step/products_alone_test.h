// A machine for the tests of forecasts and layouts.
#pragma once

#include "troupe/plan/machine.h"

namespace troupe {

// Products alone cost time: whatever else is free.
inline Machine products_alone() {
  const Link free{.bandwidth = 1e30};
  return {.products = 1e12,
          .experts = 1e12,
          .attention = 1e12,
          .bandwidth = 1e30,
          .inside = free,
          .between = free};
}

}  // namespace troupe
