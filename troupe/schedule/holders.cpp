#include "troupe/schedule/holders.h"

#include <algorithm>
#include <set>

namespace troupe {
namespace {

class Reach {
 public:
  Reach(const StepWork& work, const StepWorld& world) : world_(world) {
    const std::vector<int> owner = owners(work), stage = chunk_ranks(work);
    const std::vector<bool> several = owners_on_several_ranks(work);
    for (size_t c = 0; c < owner.size(); ++c) {
      if (several[static_cast<size_t>(owner[c])]) ends_.insert(stage[c]);
    }
  }

  std::vector<std::string> faults() {
    for (size_t rank = 0; rank < world_.ranks.size(); ++rank) {
      const StepWorld::Rank& place = world_.ranks[rank];
      const int self = static_cast<int>(rank);
      const auto expect = [&](GroupRole shard, GroupRole replicas, std::vector<int> holders) {
        std::vector<int> reached = reach(self, shard, replicas);
        if (holders.empty()) holders = {self};
        std::ranges::sort(holders);
        if (reached != holders) tell(self, replicas, reached, holders);
      };
      expect(GroupRole::kCutShard, GroupRole::kCutReplicas, place.cut_holders);
      expect(GroupRole::kWholeShard, GroupRole::kWholeReplicas, place.whole_holders);
      expect(GroupRole::kExpertShard, GroupRole::kExpertReplicas, place.expert_holders);
      if (!ends_.contains(place.list)) continue;
      expect(GroupRole::kCutShard, GroupRole::kCutTableReplicas, at_ends(place, true));
      expect(GroupRole::kWholeShard, GroupRole::kWholeTableReplicas, at_ends(place, false));
    }
    return std::move(faults_);
  }

 private:
  std::vector<int> members(int rank, GroupRole role) const {
    const int group = world_.ranks[static_cast<size_t>(rank)].of(role);
    return group < 0 ? std::vector<int>{rank} : world_.groups[static_cast<size_t>(group)];
  }
  // Sorted; a rank that is reached twice stands there twice.
  std::vector<int> reach(int rank, GroupRole shard, GroupRole replicas) const {
    std::vector<int> out;
    for (const int replica : members(rank, replicas)) {
      const std::vector<int> all = members(replica, shard);
      out.insert(out.end(), all.begin(), all.end());
    }
    std::ranges::sort(out);
    return out;
  }
  std::vector<int> at_ends(const StepWorld::Rank& place, bool cut) const {
    std::vector<int> out;
    for (const int end : ends_) {
      const int peer = place.pipeline.at(static_cast<size_t>(end));
      const StepWorld::Rank& other = world_.ranks.at(static_cast<size_t>(peer));
      const std::vector<int>& holders = cut ? other.cut_holders : other.whole_holders;
      if (holders.empty()) out.push_back(peer);
      out.insert(out.end(), holders.begin(), holders.end());
    }
    return out;
  }
  static std::string list_of(const std::vector<int>& ranks) {
    std::string out;
    for (const int rank : ranks) out.append(" ").append(std::to_string(rank));
    return out;
  }
  void tell(int rank, GroupRole role, const std::vector<int>& reached,
            const std::vector<int>& holders) {
    std::string what = "rank " + std::to_string(rank) + ": sums over the " + to_text(role);
    what.append(" reach ranks").append(list_of(reached));
    what.append("; those that hold the same are").append(list_of(holders));
    faults_.push_back(what);
  }

  const StepWorld& world_;
  std::set<int> ends_;  // lists that read a table of several
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> sharing_faults(const StepWork& work, const StepWorld& world) {
  return Reach(work, world).faults();
}

}  // namespace troupe
