#include "troupe/core/training_cost.h"

#include <sstream>

namespace troupe {

std::string utilization_line(const Utilization& u) {
  std::ostringstream out;
  out.precision(4);
  out << "MFU " << 100 * u.mfu() << "% of " << u.peak * 1e-12 << " TFLOP/s ("
      << u.flops_per_rank() * 1e-12 << " a rank), " << u.routed_rows << " routed rows, max/mean "
      << u.max_over_mean << (u.forced ? ", FORCED ROUTING" : ", learned routing");
  return out.str();
}

}  // namespace troupe
