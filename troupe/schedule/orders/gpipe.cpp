#include "troupe/schedule/orders/orders.h"

namespace troupe {

std::vector<StageStep> gpipe(const Pipeline& pipeline, int rank, bool training) {
  std::vector<StageStep> out = grouped_forwards(pipeline, rank);
  if (training) {
    const std::vector<StageStep> back = grouped_backwards(pipeline, rank);
    out.insert(out.end(), back.begin(), back.end());
  }
  std::erase_if(out, [&](const StageStep& s) { return s.microbatch >= pipeline.microbatches; });
  return out;
}

}  // namespace troupe
