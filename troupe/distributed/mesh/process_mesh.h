// Which ranks work together: arithmetic on rank numbers, no process group (rule H3, Parallel
// Folding). The same N ranks are factored twice, with the same pipeline stages:
//   attention  TP  x CP x DP  x PP      experts  ETP x EP x EDP x PP      TP CP DP = ETP EP EDP
//
//   order           rank of attention (tp, cp, dp, pp)       of experts (etp, ep, edp, pp)
//   tp-cp-ep-dp-pp  tp + TP (cp + CP (dp + DP pp))           etp + ETP (ep + EP (edp + EDP pp))
//   tp-cp-ep-pp-dp  tp + TP (cp + CP (pp + PP dp))           etp + ETP (ep + EP (pp + PP edp))
//
// So EP may span TP, CP and DP ranks. In the second order a stage is the same ranks for both
// only where TP CP = ETP EP or PP = 1; all else is refused. The placement says how
// experts are put on EP ranks, also where EP > E.
//
// Shard blocks: the data index of a rank is cp + CP dp; block b is the ranks, of all TP, with
// data index in [b shard, (b + 1) shard). Each block and TP rank has the dense state once. The
// ranks of one kExpertData group that are in one block hold one copy of their experts' state:
// TP shard / (ETP EP) ranks, or one where that is less than one. Rank 0 of 8 with EP 2, shard 4:
//   kData         0 1 2 3 4 5 6 7     kExpertData       0 2 4 6
//   kShard        0 1 2 3             kExpertShard      0 2
//   kReplicate    0 4                 kExpertReplicate  0 4
//
// A dense parameter that `repeat` neighboring TP ranks hold alike (1: cut over all of them; TP:
// whole on each) has sharers_of(rank, repeat): these TP ranks in all of kData. Those of them in one
// shard block, owners_of(), cut one copy of its state between them, so that a sum over the owners
// is one over TP ranks and data in one call; the same places in other blocks are kReplicate.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "troupe/core/text/text.h"

namespace troupe {

enum class GroupKind : uint8_t {
  kWorld,
  kTensor,
  kContext,
  kPipeline,
  kData,             // DP x CP: other tokens, the same dense parameters
  kExpert,           // between them they hold all experts
  kExpertTensor,     // the same experts, cut by their hidden width
  kExpertData,       // the same experts, other tokens
  kShard,            // hold one copy of the dense state together
  kReplicate,        // the same shard of it
  kExpertShard,      // hold one copy of their experts' state together
  kExpertReplicate,  // the same shard of it
  kMicrobatch,       // TP x CP: hold the tokens of one microbatch together (G of the losses)
  kStage,            // TP x CP x DP: have the same layers
  kExperts,          // ETP x EP: between them they hold all experts, slices and all
};

constexpr auto names_of(GroupKind) {
  return std::array{Named{"world", GroupKind::kWorld},
                    Named{"tensor", GroupKind::kTensor},
                    Named{"context", GroupKind::kContext},
                    Named{"pipeline", GroupKind::kPipeline},
                    Named{"data", GroupKind::kData},
                    Named{"expert", GroupKind::kExpert},
                    Named{"expert_tensor", GroupKind::kExpertTensor},
                    Named{"expert_data", GroupKind::kExpertData},
                    Named{"shard", GroupKind::kShard},
                    Named{"replicate", GroupKind::kReplicate},
                    Named{"expert_shard", GroupKind::kExpertShard},
                    Named{"expert_replicate", GroupKind::kExpertReplicate},
                    Named{"microbatch", GroupKind::kMicrobatch},
                    Named{"stage", GroupKind::kStage},
                    Named{"experts", GroupKind::kExperts}};
}

enum class MeshOrder : uint8_t { kDataInStage, kStageInData };

constexpr auto names_of(MeshOrder) {
  return std::array{Named{"tp-cp-ep-dp-pp", MeshOrder::kDataInStage},
                    Named{"tp-cp-ep-pp-dp", MeshOrder::kStageInData}};
}

struct MeshShape {
  int64_t tensor = 1, context = 1, pipeline = 1, expert = 1, expert_tensor = 1;
  int64_t shard = 0;  // ranks that hold one copy together; 0: all of kData
  MeshOrder order = MeshOrder::kDataInStage;
  static void visit(auto& s, auto&& f) {
    f("tensor", s.tensor);
    f("context", s.context);
    f("pipeline", s.pipeline);
    f("expert", s.expert);
    f("expert_tensor", s.expert_tensor);
    f("shard_ranks", s.shard);  // of parallel.shard_ranks
    f("order", s.order);
  }
};

// "4 or 8": the divisors of n that do, next below and above what was wanted.
std::string near_divisors(int64_t n, int64_t wanted, const std::function<bool(int64_t)>& does);

class ProcessMesh {
 public:
  // Throws one Error of all faults.
  ProcessMesh(int64_t world, const MeshShape& shape);
  // "parallel.expert: E2005 ...", each with the nearest values that would do.
  static std::vector<std::string> faults(int64_t world, const MeshShape& shape);

  const MeshShape& shape() const { return shape_; }  // with `shard` resolved: never 0
  int64_t world() const { return world_; }
  int64_t data() const { return data_; }  // DP, without CP
  int64_t expert_data() const { return expert_data_; }
  int64_t size(GroupKind kind) const;  // the same for all groups of a kind

  // Ascending, hence by the coordinate that varies. Contains `rank`.
  std::vector<int64_t> ranks_of(GroupKind kind, int64_t rank) const;
  // Every group once, by first rank.
  std::vector<std::vector<int64_t>> all(GroupKind kind) const;
  // Ascending; `repeat` divides TP.
  std::vector<int64_t> sharers_of(int64_t rank, int64_t repeat) const;
  std::vector<int64_t> owners_of(int64_t rank, int64_t repeat) const;
  // This rank's index among the DP x CP ranks with other tokens and the same dense parameters.
  int64_t data_index(int64_t rank) const;
  // Which of the ranks that hold one replica's stages this is: its place in kPipeline.
  int64_t pipeline_index(int64_t rank) const;

 private:
  struct Axis {
    int64_t size, stride;
    int64_t coordinate(int64_t rank) const { return rank / stride % size; }
  };
  std::vector<Axis> axes_of(GroupKind kind) const;  // fastest first
  std::vector<int64_t> along(GroupKind kind, int64_t rank) const;
  std::vector<int64_t> times_tensor(const std::vector<int64_t>& ranks, int64_t rank,
                                    int64_t repeat) const;

  int64_t world_;
  MeshShape shape_;
  int64_t data_ = 1, expert_data_ = 1;
  int64_t expert_shard_ = 1;  // ranks of a kExpertShard
};

// What `troupe plan` prints: both factorizations, then a line a kind of group:
//   expert_data       8 groups of 2: 0 4, 1 5, .. 11 15
// and who shares the state of dense parameters that each TP rank holds whole:
//   whole_owners      1 group of 8: 0 1 2 3 4 5 6 7
std::string to_text(const ProcessMesh& mesh);

}  // namespace troupe
