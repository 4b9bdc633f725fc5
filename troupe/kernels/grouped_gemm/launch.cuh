// What the launchers of both grouped products share.
#pragma once

#include <type_traits>

#include "troupe/core/device/view.h"
#include "troupe/kernels/device/build_code.h"
#include "troupe/kernels/device/tile_launch.cuh"
#include "troupe/kernels/grouped_gemm/gemm_plan.h"

namespace troupe::grouped {

template <class View>
bool aligned(const View& x) {
  return tile::rows_aligned(x.data, x.ld, size_bytes(x.dtype));
}

// May the result be stored 16 bytes at a time?
inline bool stores_vectors(const MutRef& c) {
  return aligned(c) && c.cols * size_bytes(c.dtype) % 16 == 0;
}

// What the kernels for Hopper GPUs take as operand.
template <class View>
bool plain(const View& x) {
  return x.dtype == Dtype::kBF16 && aligned(x) && x.ld == x.cols && x.cols % 64 == 0;
}

inline DeviceLimits current_device() {
  using tile::device_attribute;
  return {.capability = 10 * device_attribute(cudaDevAttrComputeCapabilityMajor) +
                        device_attribute(cudaDevAttrComputeCapabilityMinor),
          .processors = device_attribute(cudaDevAttrMultiProcessorCount),
          .shared_per_block = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          .shared_per_processor = device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor),
          .sm90_code = runs_sm90_code()};
}

// f.operator()<kN, kStages, kAligned>() for the plan's tile, of those that T has (built_tiles). Three
// stages are for rows alone, where they make room for a second block of threads.
template <class T, bool kRows, class F>
void dispatch_tile(const GemmPlan& plan, F&& f) {
  const GemmTile tile{plan.tile_n, plan.stages};
  const auto is = [&](int n, int stages, bool aligned) {
    return tile == GemmTile{n, stages} && plan.aligned == aligned;
  };
  TROUPE_CHECK(plan.path == Path::kGeneric, "no kernel built for", to_text(plan));
  if constexpr (!std::is_same_v<T, float>) {
    if (is(256, 4, true)) return f.template operator()<256, 4, true>();
    if (is(64, 4, true)) return f.template operator()<64, 4, true>();
    if constexpr (kRows) {
      if (is(128, 3, true)) return f.template operator()<128, 3, true>();
    }
  }
  if (is(128, 4, true)) return f.template operator()<128, 4, true>();
  TROUPE_CHECK(is(128, 4, false), "no kernel built for", to_text(plan));
  f.template operator()<128, 4, false>();
}

}  // namespace troupe::grouped
