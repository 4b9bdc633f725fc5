#include "troupe/train/layout/state_owners.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/nn/model/model.h"
#include "troupe/train/layout/expert_dispatch.h"

namespace troupe {
namespace {

// How many parts of the hidden width an expert's matrix is cut into.
int64_t slices_of(const Param& p) {
  int64_t out = 1;
  for (size_t d = 1; d < p.size.size(); ++d) {
    if (p.size[d] > 0) out = std::max(out, p.global[d] / p.size[d]);
  }
  return out;
}

// Makes the groups of share_state(), in one order on all ranks.
class StateOwners {
 public:
  StateOwners(const ParallelState& state, const ParallelConfig& parallel, const ModelConfig& model,
              const std::shared_ptr<ProcessGroup>& experts, const std::vector<int>& unit_ranks)
      : state_(state),
        world_(state.world()),
        mesh_(state.mesh()),
        config_(parallel),
        model_(model),
        experts_(experts),
        unit_ranks_(unit_ranks) {}

  // `matrices`: the optimizer puts together what ranks cut (Owners::parts).
  std::function<Owners(const NamedParam&)> by_box(bool matrices) const;

 private:
  std::vector<int64_t> ends_of_table() const;
  std::vector<int64_t> parts_of_matrices(int64_t repeat) const;
  std::map<int64_t, std::shared_ptr<ProcessGroup>> groups_of_slices() const;

  const ParallelState& state_;
  World& world_;
  const ProcessMesh& mesh_;
  const ParallelConfig& config_;
  const ModelConfig& model_;
  const std::shared_ptr<ProcessGroup>& experts_;
  const std::vector<int>& unit_ranks_;
};

// The ranks of the stages that have the embedding and the head, with this one's other places;
// empty: one table is on one rank, or this rank is on neither stage.
std::vector<int64_t> StateOwners::ends_of_table() const {
  if (unit_ranks_.empty()) return {};
  std::set<int> readers = {unit_ranks_.front()};
  for (int64_t d = 1; d <= model_.mtp.depth; ++d) {
    readers.insert(unit_ranks_[static_cast<size_t>(model_.layers + d)]);
  }
  if (model_.tie_embeddings) readers.insert(unit_ranks_.back());
  if (readers.size() == 1 || !readers.contains(static_cast<int>(state_.stage_rank()))) return {};
  const std::vector<int64_t> stages = mesh_.ranks_of(GroupKind::kPipeline, state_.rank());
  std::vector<int64_t> out;
  for (const int reader : readers) out.push_back(stages[static_cast<size_t>(reader)]);
  return out;
}

// One rank for each part of the matrices of which `repeat` neighbors hold the same.
std::vector<int64_t> StateOwners::parts_of_matrices(int64_t repeat) const {
  const std::vector<int64_t> all = mesh_.ranks_of(GroupKind::kTensor, state_.rank());
  const auto own = std::ranges::find(all, state_.rank()) - all.begin();
  std::vector<int64_t> out;
  for (auto i = own % repeat; i < std::ssize(all); i += repeat) {
    out.push_back(all[static_cast<size_t>(i)]);
  }
  return out;
}

// For each number of slices that experts are cut into, the ranks with this rank's slice.
std::map<int64_t, std::shared_ptr<ProcessGroup>> StateOwners::groups_of_slices() const {
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

std::function<Owners(const NamedParam&)> StateOwners::by_box(bool matrices) const {
  const int64_t rank = state_.rank(), tensor = mesh_.shape().tensor;
  const auto group = [&](GroupKind kind) { return world_.group(mesh_.ranks_of(kind, rank)); };
  std::set<int64_t> repeats = {1, tensor};
  for (int64_t i = 0; i < model_.layers + model_.mtp.depth; ++i) {
    const int64_t heads = layer_config(model_, i).kv_heads;
    if (!model_.mla && heads < tensor) repeats.insert(tensor / heads);
  }
  const bool none = config_.shard == ShardKind::kNone;
  const std::string stage =
      state_.stage_ranks() == 1 ? "" : " of stage rank " + std::to_string(state_.stage_rank());
  const std::vector<int64_t> ends = ends_of_table();
  std::map<int64_t, Owners> dense, tables;
  for (const int64_t repeat : repeats) {
    const int64_t place = rank % tensor / repeat;
    const std::string part = repeat == tensor ? ""
                                              : " of tensor part " + std::to_string(place + 1) +
                                                    '/' + std::to_string(tensor / repeat);
    // Where nothing is shared out, all that hold the box are replicas.
    dense[repeat] = {
        none ? world_.group({rank}) : world_.group(mesh_.owners_of(rank, repeat)),
        none ? world_.group(mesh_.sharers_of(rank, repeat)) : group(GroupKind::kReplicate),
        "dense" + part + stage};
    if (matrices) dense[repeat].parts = world_.group(parts_of_matrices(repeat));
    if (ends.empty()) continue;
    std::vector<int64_t> both;
    for (const int64_t end : ends) {
      const std::vector<int64_t> of_end =
          none ? mesh_.sharers_of(end, repeat) : mesh_.ranks_of(GroupKind::kReplicate, end);
      both.insert(both.end(), of_end.begin(), of_end.end());
    }
    std::ranges::sort(both);
    tables[repeat] = {dense[repeat].owners, world_.group(both), "tables" + part};
  }
  const std::vector<int64_t> holders = mesh_.ranks_of(GroupKind::kExperts, rank);
  const auto place = std::ranges::find(holders, rank) - holders.begin();
  const Owners experts = {none ? world_.group({rank}) : group(GroupKind::kExpertShard),
                          group(none ? GroupKind::kExpertData : GroupKind::kExpertReplicate),
                          "experts of place " + std::to_string(place) + stage};
  std::map<int64_t, std::shared_ptr<ProcessGroup>> slices;  // by their number
  if (matrices) slices = groups_of_slices();
  return [dense, tables, experts, tensor, slices](const NamedParam& named) {
    const Param& p = *named.param;
    const bool table = named.unit == 0 && !tables.empty();
    if (!p.per_expert) return (table ? tables : dense).at(p.tensor_repeat(tensor));
    Owners out = experts;
    const auto of_slices = slices.find(slices_of(p));
    if (of_slices != slices.end()) out.parts = of_slices->second;
    return out;
  };
}

}  // namespace

Sharing share_state(const ParallelState& state, const ParallelConfig& parallel,
                    const Recipe& recipe, const std::shared_ptr<ProcessGroup>& experts,
                    const std::vector<int>& unit_ranks) {
  const OptimizerConfig& optimizer = recipe.train.optimizer;
  const bool matrices = needs_whole_matrices(optimizer) && !needs_whole_state(optimizer);
  const StateOwners owners(state, parallel, recipe.model, experts, unit_ranks);
  return {.alone = false,
          .full = parallel.shard == ShardKind::kFull,
          .owners = owners.by_box(matrices),
          .sum_type = parallel.sum == SumType::kFp32 ? at::kFloat : at::kBFloat16};
}

}  // namespace troupe
