#include "troupe/train/forecast/step_work.h"

#include "troupe/schedule/schedules.h"

namespace troupe {

std::map<std::string, int> first_readers(Model& model) {
  std::map<std::string, int> out;
  for (int unit = 0; unit < static_cast<int>(model.num_units()); ++unit) {
    model.for_each_param(unit, [&](const std::string& name, Param&) {
      out.emplace(name, name.starts_with("embed.") ? 0 : unit);
    });
  }
  return out;
}

StepWork stages_of(const ParallelConfig& parallel, const ModelConfig& model) {
  const PipelineShape shape = pipeline_shape(parallel, model.layers, model.mtp.depth);
  const StageMap map = read_stage_map(parallel.stages, shape).map;
  StepWork out = with_stages({.chunks = shape.parts()}, map, shape);
  out.order = parallel.schedule;
  return out;
}

StepWork step_work(const Recipe& recipe, const ParallelConfig& parallel) {
  const ModelConfig& model = recipe.model;
  StepWork out{.chunks = static_cast<int>(costs_of(model).units.size())};
  if (parallel.pipeline > 1) out = stages_of(parallel, model);
  out.beside = parallel.overlap == Overlap::kExperts;
  out.updates_in_backward = recipe.train.update == UpdatePlace::kInBackward;
  const std::vector<bool> again = recomputed_blocks(recipe);
  for (size_t layer = 0; layer < again.size(); ++layer) {
    if (again[layer]) out.recomputed.push_back(static_cast<int>(layer) + 1);
  }
  // MTP modules read the embedding's table, and the head where it has none of its own.
  for (int64_t d = 1; d <= model.mtp.depth; ++d) {
    out.tied.emplace_back(0, static_cast<int>(model.layers + d));
  }
  if (model.tie_embeddings) out.tied.emplace_back(0, out.chunks - 1);
  return out;
}

Schedule step_schedule(const ParallelConfig& parallel, const StepWork& work) {
  const StateSharing sharing{.full = parallel.shard == ShardKind::kFull,
                             .zero1 = parallel.shard == ShardKind::kZero1,
                             .prefetch = static_cast<int>(parallel.prefetch),
                             .reshard = parallel.reshard};
  return build_schedule(config_of(sharing, work), work);
}

RankShare share_of(int64_t all, int64_t rank, int64_t ranks) {
  const int64_t first = rank * all / ranks, end = (rank + 1) * all / ranks;
  return {first, end - first, (all + ranks - 1) / ranks};
}

}  // namespace troupe
