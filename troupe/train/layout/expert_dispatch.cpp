#include "troupe/train/layout/expert_dispatch.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/dispatchers.h"
#include "troupe/distributed/dispatch/watched_dispatcher.h"
#include "troupe/distributed/group/symmetric_heap.h"

namespace troupe {

ExpertPlacement placement_of(const ParallelConfig& parallel, int64_t ranks, const MoeConfig& moe) {
  const int64_t slices = parallel.expert_tensor;
  if (ranks / slices > moe.experts) return hidden_sharded(moe.experts, ranks, moe.ffn.hidden);
  if (slices > 1) return sliced(moe.experts, ranks / slices, slices, moe.ffn.hidden);
  return parallel.placement == ExpertSplit::kUneven ? in_runs(moe.experts, ranks)
                                                    : contiguous(moe.experts, ranks);
}

DispatcherFactory dispatcher_factory(const ParallelConfig& parallel, const NodeGroups& groups,
                                     const std::shared_ptr<Turns>& turns,
                                     const std::shared_ptr<Pulse>& pulse, const Faults& faults,
                                     bool by_source) {
  return [parallel, groups, turns, pulse, &faults, by_source](int64_t, const MoeConfig& moe) {
    std::unique_ptr<Dispatcher> made = watched_dispatcher(
        build(parallel.dispatcher, groups, placement_of(parallel, groups.all->size(), moe),
              {.mode = parallel.dispatch, .wire = parallel.wire, .by_source = by_source}),
        pulse, faults);
    return turns ? turning_dispatcher(std::move(made), turns, pulse) : std::move(made);
  };
}

at::Tensor missed_rows(const std::shared_ptr<ProcessGroup>& experts, const c10::Device& device) {
  const SymmetricHeap* heap = experts ? experts->heap() : nullptr;
  return heap != nullptr ? heap->gave_up()
                         : at::zeros({}, at::TensorOptions(at::kDouble).device(device));
}

void require_rows(const std::shared_ptr<ProcessGroup>& experts, double missed) {
  if (missed == 0) return;
  if (experts && experts->heap() != nullptr) experts->heap()->check_device();
  fail(Code::kRankLost, "rows of experts", "are missing on", missed,
       "rank(s), whose peers gave none in time; nothing of this step is kept");
}

}  // namespace troupe
