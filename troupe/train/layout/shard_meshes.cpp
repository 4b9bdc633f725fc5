#include "troupe/train/layout/shard_meshes.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/nn/model/model.h"
#include "troupe/train/layout/expert_dispatch.h"

namespace troupe {
namespace {

// Makes the groups of share_state(), in one order on all ranks.
class MeshBuilder {
 public:
  MeshBuilder(const ParallelState& state, const ResolvedRun& run,
              const std::shared_ptr<ProcessGroup>& experts, const std::vector<int>& unit_ranks)
      : world_(state.world()),
        mesh_(state.mesh()),
        rank_(state.rank()),
        tensor_(mesh_.shape().tensor),
        stage_rank_(state.stage_rank()),
        none_(run.parallel.shard == ShardKind::kNone),
        config_(run.parallel),
        model_(run.model),
        experts_(experts),
        unit_ranks_(unit_ranks),
        stage_(state.stage_ranks() == 1 ? "" : " of stage rank " + std::to_string(stage_rank_)) {}

  // `matrices`: the optimizer puts together what ranks cut (ShardMesh::parts).
  ShardMeshes build(bool matrices) const;

 private:
  std::shared_ptr<ProcessGroup> group(GroupKind kind) const {
    return world_.group(mesh_.ranks_of(kind, rank_));
  }
  std::set<int64_t> repeats() const;
  std::string part_name(int64_t repeat) const;
  ShardMesh of_dense(int64_t repeat) const;
  ShardMesh of_table(const ShardMesh& dense, int64_t repeat,
                     const std::vector<int64_t>& ends) const;
  ShardMesh of_experts() const;
  std::vector<int64_t> ends_of_table() const;
  std::vector<int64_t> parts_of_matrices(int64_t repeat) const;
  std::map<int64_t, std::shared_ptr<ProcessGroup>> groups_of_slices() const;

  World& world_;
  const ProcessMesh& mesh_;
  const int64_t rank_, tensor_, stage_rank_;
  const bool none_;  // nothing is sharded: all ranks that hold a box are replicas
  const ParallelConfig& config_;
  const ModelConfig& model_;
  const std::shared_ptr<ProcessGroup>& experts_;
  const std::vector<int>& unit_ranks_;
  const std::string stage_;
};

// The ranks of the stages that have the embedding and the head, with this one's other places;
// empty: one table is on one rank, or this rank is on neither stage.
std::vector<int64_t> MeshBuilder::ends_of_table() const {
  if (unit_ranks_.empty()) return {};
  std::set<int> readers = {unit_ranks_.front()};
  for (int64_t d = 1; d <= model_.mtp.depth; ++d) {
    readers.insert(unit_ranks_[static_cast<size_t>(model_.layers + d)]);
  }
  if (model_.tie_embeddings) readers.insert(unit_ranks_.back());
  if (readers.size() == 1 || !readers.contains(static_cast<int>(stage_rank_))) return {};
  const std::vector<int64_t> stages = mesh_.ranks_of(GroupKind::kPipeline, rank_);
  std::vector<int64_t> out;
  for (const int reader : readers) out.push_back(stages[static_cast<size_t>(reader)]);
  return out;
}

// One rank for each part of the matrices of which `repeat` neighbors hold the same.
std::vector<int64_t> MeshBuilder::parts_of_matrices(int64_t repeat) const {
  const std::vector<int64_t> all = mesh_.ranks_of(GroupKind::kTensor, rank_);
  const auto own = std::ranges::find(all, rank_) - all.begin();
  std::vector<int64_t> out;
  for (auto i = own % repeat; i < std::ssize(all); i += repeat) {
    out.push_back(all[static_cast<size_t>(i)]);
  }
  return out;
}

// For each number of slices that experts are cut into, the ranks with this rank's slice.
std::map<int64_t, std::shared_ptr<ProcessGroup>> MeshBuilder::groups_of_slices() const {
  std::map<int64_t, std::shared_ptr<ProcessGroup>> out;
  if (!experts_) return out;
  for (int64_t i = 0; i < model_.layers + model_.mtp.depth; ++i) {
    const LayerConfig layer = layer_config(model_, i);
    if (!layer.moe) continue;
    const ExpertPlacement placement = placement_of(config_, experts_->size(), *layer.moe);
    if (placement.slices() == 1 || out.contains(placement.slices())) continue;
    std::vector<int64_t> ranks;
    for (const int32_t place : placement.owners(placement.held_by(experts_->rank()).front())) {
      ranks.push_back(experts_->ranks()[static_cast<size_t>(place)]);
    }
    out[placement.slices()] = world_.group(ranks);
  }
  return out;
}

// How many neighboring tensor ranks may hold the same box: of a tensor that is cut, of one that is
// whole, and of keys with fewer heads than ranks.
std::set<int64_t> MeshBuilder::repeats() const {
  std::set<int64_t> out = {1, tensor_};
  for (int64_t i = 0; i < model_.layers + model_.mtp.depth; ++i) {
    const int64_t heads = layer_config(model_, i).kv_heads;
    if (!model_.mla && heads < tensor_) out.insert(tensor_ / heads);
  }
  return out;
}

std::string MeshBuilder::part_name(int64_t repeat) const {
  if (repeat == tensor_) return {};
  const int64_t place = rank_ % tensor_ / repeat;
  return " of tensor part " + std::to_string(place + 1) + '/' + std::to_string(tensor_ / repeat);
}

ShardMesh MeshBuilder::of_dense(int64_t repeat) const {
  return {world_.group(none_ ? std::vector{rank_} : mesh_.owners_of(rank_, repeat)),
          none_ ? world_.group(mesh_.sharers_of(rank_, repeat)) : group(GroupKind::kReplicate),
          "dense" + part_name(repeat) + stage_};
}

// Sharded as `dense` within a stage, and replicated over all `ends`.
ShardMesh MeshBuilder::of_table(const ShardMesh& dense, int64_t repeat,
                                const std::vector<int64_t>& ends) const {
  std::vector<int64_t> both;
  for (const int64_t end : ends) {
    const std::vector<int64_t> of_end =
        none_ ? mesh_.sharers_of(end, repeat) : mesh_.ranks_of(GroupKind::kReplicate, end);
    both.insert(both.end(), of_end.begin(), of_end.end());
  }
  std::ranges::sort(both);
  return {dense.shard, world_.group(both), "tables" + part_name(repeat)};
}

ShardMesh MeshBuilder::of_experts() const {
  const std::vector<int64_t> holders = mesh_.ranks_of(GroupKind::kExperts, rank_);
  const auto place = std::ranges::find(holders, rank_) - holders.begin();
  return {none_ ? world_.group({rank_}) : group(GroupKind::kExpertShard),
          group(none_ ? GroupKind::kExpertData : GroupKind::kExpertReplicate),
          "experts of place " + std::to_string(place) + stage_};
}

ShardMeshes MeshBuilder::build(bool matrices) const {
  ShardMeshes out{.tensor = tensor_};
  const std::vector<int64_t> ends = ends_of_table();
  for (const int64_t repeat : repeats()) {
    ShardMesh& mesh = out.dense[repeat] = of_dense(repeat);
    if (matrices) mesh.parts = world_.group(parts_of_matrices(repeat));
    if (!ends.empty()) out.tables[repeat] = of_table(mesh, repeat, ends);
  }
  out.experts[1] = of_experts();
  if (!matrices) return out;
  for (const auto& [slices, ranks] : groups_of_slices()) {
    ShardMesh& mesh = out.experts[slices] = out.experts.at(1);
    mesh.parts = ranks;
  }
  return out;
}

}  // namespace

Sharing share_state(const ParallelState& state, const ResolvedRun& run,
                    const std::shared_ptr<ProcessGroup>& experts,
                    const std::vector<int>& unit_ranks) {
  const ParallelConfig& parallel = run.parallel;
  const OptimizerConfig& optimizer = run.train.optimizer;
  const bool matrices = needs_whole_matrices(optimizer) && !needs_whole_state(optimizer);
  return {.alone = false,
          .full = parallel.shard == ShardKind::kFull,
          .meshes = MeshBuilder(state, run, experts, unit_ranks).build(matrices),
          .sum_type = parallel.sum == SumType::kFp32 ? at::kFloat : at::kBFloat16};
}

}  // namespace troupe
