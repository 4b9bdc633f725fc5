// A routing plan made by plain loops, for tests that should not depend on ops/routing_plan.
#pragma once

#include "troupe/ops/support/plan.h"

namespace troupe::testing {

// ids: int32 [T, K], -1 where a slot has no row; segments are rounded up to a multiple of
// `alignment`. The plan is on the ids' device.
Plan plan_of(const at::Tensor& ids_TK, int64_t num_experts, int64_t alignment = 1);

// T tokens choose K distinct of E experts, fixed by the seed; counts are uneven. Where E > 2, the
// last expert gets no token.
at::Tensor random_ids(int64_t T, int64_t K, int64_t E, uint64_t seed);

}  // namespace troupe::testing
