#include "troupe/schedule/orders/orders.h"

namespace troupe {

std::vector<StageStep> late_weights(const Pipeline& pipeline, int rank) {
  std::vector<StageStep> out;
  int late = 0;  // the microbatch whose W comes next
  for (const StageStep& step : one_forward_one_backward(pipeline, rank)) {
    if (step.kind != Kind::kBackward) {
      out.push_back(step);
      continue;
    }
    out.push_back({Kind::kBackwardInput, step.stage, step.microbatch});
    if (step.microbatch - late >= rank) {
      out.push_back({Kind::kBackwardWeight, step.stage, late++});
    }
  }
  for (; late < pipeline.microbatches; ++late) {
    out.push_back({Kind::kBackwardWeight, rank, late});
  }
  return out;
}

}  // namespace troupe
