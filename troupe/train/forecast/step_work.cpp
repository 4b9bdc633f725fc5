#include "troupe/train/forecast/step_work.h"

#include "troupe/schedule/schedules.h"

namespace troupe {

std::map<const Param*, int> first_readers(Model& model) {
  std::map<const Param*, int> out;
  for (int unit = 0; unit < static_cast<int>(model.num_units()); ++unit) {
    model.for_each_param(unit, [&](const std::string&, Param& p) { out.emplace(&p, unit); });
  }
  return out;
}

StepWork step_work(Model& model, const Recipe& recipe) {
  StepWork out{.chunks = static_cast<int>(model.num_units())};
  const std::vector<bool> again = recomputed_blocks(recipe);
  for (size_t layer = 0; layer < again.size(); ++layer) {
    if (again[layer]) out.recomputed.push_back(static_cast<int>(layer) + 1);
  }
  const std::map<const Param*, int> first = first_readers(model);
  for (int unit = 0; unit < out.chunks; ++unit) {
    model.for_each_param(unit, [&](const std::string&, Param& p) {
      const std::pair tie{first.at(&p), unit};
      if (tie.first == unit) return;
      if (out.tied.empty() || out.tied.back() != tie) out.tied.push_back(tie);
    });
  }
  return out;
}

Schedule step_schedule(const ParallelConfig& parallel, const StepWork& work) {
  if (work.replicas == 1) return build_schedule(Accumulate{}, work);
  if (parallel.shard == ShardKind::kFull) {
    return build_schedule(
        FullShard{.prefetch = static_cast<int>(parallel.prefetch), .reshard = parallel.reshard},
        work);
  }
  return build_schedule(DataParallel{.sharded = parallel.shard == ShardKind::kZero1}, work);
}

RankShare share_of(int64_t all, int64_t rank, int64_t ranks) {
  const int64_t first = rank * all / ranks, end = (rank + 1) * all / ranks;
  return {first, end - first, (all + ranks - 1) / ranks};
}

}  // namespace troupe
