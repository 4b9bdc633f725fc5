#include "troupe/train/forecast/mesh_world.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {
namespace {

std::vector<int> ints(const std::vector<int64_t>& ranks) {
  return {ranks.begin(), ranks.end()};
}

// A unit's forward, in order. Tokens are gathered for products that tensor ranks cut, and summed or
// scattered behind them.
StepWorld::Unit unit_of(const UnitParts& parts, bool cut) {
  const UnitCall tokens{.role = GroupRole::kTensor, .size = UnitCall::kRows, .gradient = true};
  const UnitCall keys{.role = GroupRole::kContext, .size = UnitCall::kOwn, .gradient = true};
  const UnitCall rows{.role = GroupRole::kExperts, .size = UnitCall::kOwn, .gradient = true};
  StepWorld::Unit out{.has_experts = parts.experts, .cut = cut, .states = parts.states};
  out.calls.push_back(tokens);
  if (parts.attention) out.calls.push_back(keys);
  if (parts.experts) {
    out.calls.push_back({.role = GroupRole::kMicrobatch, .size = UnitCall::kRows});
    if (parts.sums_over_all) out.calls.push_back({.role = GroupRole::kStage});
    out.calls.push_back(rows);
    out.calls.push_back(rows);
  }
  out.calls.push_back(tokens);
  return out;
}

// Lists that read a table of several.
std::set<int> ends_of_tables(const StepWork& work) {
  const std::vector<int> owner = owners(work), stage = chunk_ranks(work);
  const std::vector<bool> several = owners_on_several_ranks(work);
  std::set<int> out;
  for (size_t c = 0; c < owner.size(); ++c) {
    if (several[static_cast<size_t>(owner[c])]) out.insert(stage[c]);
  }
  return out;
}

class WorldBuilder {
 public:
  WorldBuilder(const ProcessMesh& mesh, const StepWork& work, const MeshWorld& parts)
      : mesh_(mesh), none_(parts.whole_state), ends_(ends_of_tables(work)) {
    out_.rows = parts.rows;
    for (const UnitParts& unit : parts.units) {
      out_.units.push_back(unit_of(unit, mesh.shape().tensor > 1));
    }
  }

  StepWorld build() && {
    for (int64_t rank = 0; rank < mesh_.world(); ++rank) add(rank);
    return std::move(out_);
  }

 private:
  int group(const std::vector<int>& ranks) {
    if (ranks.size() < 2) return -1;
    const auto [at, is_new] = known_.try_emplace(ranks, static_cast<int>(out_.groups.size()));
    if (is_new) out_.groups.push_back(ranks);
    return at->second;
  }
  std::vector<int> replicas(int64_t rank, int64_t repeat) const {
    return ints(none_ ? mesh_.sharers_of(rank, repeat)
                      : mesh_.ranks_of(GroupKind::kReplicate, rank));
  }
  std::vector<int> tables(const std::vector<int>& pipeline, int64_t repeat) const {
    std::vector<int> out;
    for (const int end : ends_) {
      const std::vector<int> all = replicas(pipeline[static_cast<size_t>(end)], repeat);
      out.insert(out.end(), all.begin(), all.end());
    }
    std::ranges::sort(out);
    return out;
  }

  void add(int64_t rank) {
    const int64_t tensor = mesh_.shape().tensor;
    StepWorld::Rank& r = out_.ranks.emplace_back();
    r.list = static_cast<int>(mesh_.pipeline_index(rank));
    r.data = static_cast<int>(mesh_.data_index(rank) / mesh_.shape().context);
    r.pipeline = ints(mesh_.ranks_of(GroupKind::kPipeline, rank));
    r.cut_holders = ints(mesh_.sharers_of(rank, 1));
    r.whole_holders = ints(mesh_.sharers_of(rank, tensor));
    r.expert_holders = ints(mesh_.ranks_of(GroupKind::kExpertData, rank));
    const auto put = [&](GroupRole role, const std::vector<int>& ranks) {
      r.group[static_cast<size_t>(role)] = group(ranks);
    };
    const auto put_kind = [&](GroupRole role, GroupKind kind) {
      put(role, ints(mesh_.ranks_of(kind, rank)));
    };
    put_kind(GroupRole::kTensor, GroupKind::kTensor);
    put_kind(GroupRole::kContext, GroupKind::kContext);
    put_kind(GroupRole::kMicrobatch, GroupKind::kMicrobatch);
    put_kind(GroupRole::kExperts, GroupKind::kExperts);
    put_kind(GroupRole::kStage, GroupKind::kStage);
    put_kind(GroupRole::kWorld, GroupKind::kWorld);
    const std::vector<int> alone = {static_cast<int>(rank)};
    put(GroupRole::kCutShard, none_ ? alone : ints(mesh_.owners_of(rank, 1)));
    put(GroupRole::kCutReplicas, replicas(rank, 1));
    put(GroupRole::kWholeShard, none_ ? alone : ints(mesh_.owners_of(rank, tensor)));
    put(GroupRole::kWholeReplicas, replicas(rank, tensor));
    const bool end = ends_.contains(r.list);
    put(GroupRole::kCutTableReplicas, end ? tables(r.pipeline, 1) : alone);
    put(GroupRole::kWholeTableReplicas, end ? tables(r.pipeline, tensor) : alone);
    put_kind(GroupRole::kExpertReplicas,
             none_ ? GroupKind::kExpertData : GroupKind::kExpertReplicate);
    none_ ? put(GroupRole::kExpertShard, alone)
          : put_kind(GroupRole::kExpertShard, GroupKind::kExpertShard);
  }

  const ProcessMesh& mesh_;
  const bool none_;
  const std::set<int> ends_;
  std::map<std::vector<int>, int> known_;
  StepWorld out_;
};

}  // namespace

StepWorld world_of(const ProcessMesh& mesh, const StepWork& work, const MeshWorld& parts) {
  TROUPE_CHECK(mesh.shape().pipeline == work.ranks, "a mesh of", mesh.shape().pipeline,
               "stages and work of", work.ranks);
  return WorldBuilder(mesh, work, parts).build();
}

}  // namespace troupe
