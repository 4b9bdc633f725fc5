// In which order the ranks of a pipeline compute: a recipe's parallel.schedule.
#pragma once

#include <array>
#include <cstdint>

#include "troupe/core/text/text.h"

namespace troupe {

enum class PipelineOrder : uint8_t {
  kAuto,         // 1f1b with one stage a rank, interleaved with several, zbv in a V
  kGpipe,        // all forwards, then all backwards
  k1f1b,         // one forward, one backward; one stage a rank
  kInterleaved,  // the same, with several stages a rank
  kZb1p,         // 1f1b with gradients of weights put off to where a rank would wait
  kZbv,          // the same in a V: two stages a rank, the first and the last on rank 0
  kDualPipeV,    // in a V, in pairs of a forward and a backward of two microbatches
};
constexpr auto names_of(PipelineOrder) {
  return std::array{Named{"auto", PipelineOrder::kAuto},
                    Named{"gpipe", PipelineOrder::kGpipe},
                    Named{"1f1b", PipelineOrder::k1f1b},
                    Named{"interleaved", PipelineOrder::kInterleaved},
                    Named{"zb1p", PipelineOrder::kZb1p},
                    Named{"zbv", PipelineOrder::kZbv},
                    Named{"dualpipev", PipelineOrder::kDualPipeV}};
}

// With two stages a rank, rank r has r and, on the way back, 2 P - 1 - r.
constexpr bool is_in_a_vee(PipelineOrder order) {
  return order == PipelineOrder::kZbv || order == PipelineOrder::kDualPipeV;
}

// Whether it makes gradients of weights apart from those of inputs (Kind I and W).
constexpr bool has_late_weights(PipelineOrder order) {
  return order == PipelineOrder::kZb1p || is_in_a_vee(order);
}

// Whether it has backwards that a forward of another microbatch follows, which may take turns
// (OV8).
constexpr bool runs_beside(PipelineOrder order) {
  return order == PipelineOrder::k1f1b || order == PipelineOrder::kInterleaved;
}

}  // namespace troupe
