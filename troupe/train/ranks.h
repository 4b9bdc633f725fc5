// The ranks of a run, as the trainer sees them: which rank holds which experts and which part of
// the state, who computes which microbatches, and checks that all agree. Also for a single rank.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troupe/checkpoint/peers.h"
#include "troupe/core/file/fault.h"
#include "troupe/distributed/dispatch/dispatcher_config.h"
#include "troupe/distributed/dispatch/turns.h"
#include "troupe/distributed/group/stage_channels.h"
#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/distributed/world/world.h"
#include "troupe/nn/context_slice.h"
#include "troupe/nn/models/model.h"
#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/step_work.h"
#include "troupe/train/params/param_store.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// Throws E2010 unless all ranks have the same text; the message says which ranks have what.
// require_equal_lines() shows only the first line that differs.
void require_equal(World& world, const std::string& what, const std::string& text);
void require_equal_lines(World& world, const std::string& what, const std::string& lines);

class Ranks {
 public:
  Ranks();  // one
  // Chooses what the recipe leaves open, and makes the groups. Throws one Error of all that does
  // not fit.
  Ranks(std::shared_ptr<World> world, const Recipe& recipe);

  int64_t rank() const { return world_->rank(); }
  int64_t size() const { return world_->size(); }
  bool alone() const { return size() == 1; }
  // Number of data replicas, each with its own sequences, and the index of this rank's. The ranks
  // of a replica share its microbatches; the first of them reports what is counted once.
  int64_t data_ranks() const { return mesh_.data(); }
  int64_t data_index() const { return mesh_.data_index(rank()) / mesh_.shape().context; }
  bool first_of_replica() const { return first_of_microbatch() && stage_rank() == 0; }
  // The same among the ranks of one stage, for what is counted once per microbatch and layer.
  bool first_of_microbatch() const {
    return alone() || mesh_.ranks_of(GroupKind::kMicrobatch, rank()).front() == rank();
  }
  // This rank's index in its pipeline: the number of its list in a schedule.
  int stage_rank() const { return static_cast<int>(mesh_.pipeline_index(rank())); }
  int stage_ranks() const { return static_cast<int>(mesh_.shape().pipeline); }
  World& world() { return *world_; }
  const ProcessMesh& mesh() const { return mesh_; }
  const ParallelConfig& parallel() const { return config_; }  // every choice made

  // How the model reaches its experts (with `faults`, which must stay, on the way) and shares its
  // matrices, and how the store shares its state.
  BuildOptions build_options(const Faults& faults) const;
  Sharing sharing() const { return sharing_; }
  // Between which experts lie; null: all experts are here.
  const std::shared_ptr<ProcessGroup>& expert_group() const { return experts_; }
  // How a layer's experts lie on them when a run begins.
  ExpertPlacement placement_of(const MoeConfig& moe) const;
  // To the ranks of the stages before and behind.
  const std::shared_ptr<StageChannels>& channels() const { return channels_; }
  Schedule schedule(StepWork work) const;
  // Runs a backward and a forward in turns (parallel.overlap); absent: there are none.
  using Part = std::function<void()>;
  std::function<void(const Part& back, const Part& ahead)> both() const;

  using Share = RankShare;
  // Which part of each row is this rank's.
  RowCut row_cut(const ModelConfig& model) const {
    return {keys_.ranks(), keys_.rank(), model.mtp.depth, config_.context_dealing};
  }
  Share share_of(int64_t all) const { return troupe::share_of(all, data_index(), data_ranks()); }

  SumOver sum_over_all() const;    // of the device's tensors; absent: one rank
  SumOver sum_over_stage() const;  // over the ranks with the same layers; likewise
  // Over the ranks that hold the replica's stages: small, what each but one gives is 0.
  std::vector<double> of_stages(std::vector<double> values) const;
  std::vector<double> summed(std::vector<double> values) const;  // small, on the host
  // f64 scalar on the device: 1 where this rank computed on without rows that a peer did not give
  // (SymmetricHeap::gave_up). The result of the step or evaluation is wrong then.
  at::Tensor missed_rows(const c10::Device& device) const;
  // Throws E6001 where `missed`, their number over ranks, is not 0.
  void require_rows(double missed) const;
  // The ranks that save and load together. A save gathers on a background thread: what a step
  // gathers meanwhile is gather()'s, under a topic of its own.
  Peers peers() const;
  // Each rank's text, in rank order. All ranks call it, each topic from one thread at a time.
  std::vector<std::string> gather(const std::string& topic, const std::string& mine) const;
  void require_equal(const std::string& what, const std::string& text) const;
  std::string description() const;  // "8 ranks (torchrun): experts over 4, state over 8 (zero1)"
  // What rank 0 chose of what the recipe leaves open; of one rank, which has no layout, nothing.
  const LayoutChoice& choice() const { return choice_; }

 private:
  // `matrices`: the optimizer puts together what ranks cut (Owners::parts).
  std::function<Owners(const NamedParam&)> owners_by_box(const ModelConfig& model, bool matrices);
  std::vector<int64_t> parts_of_matrices(int64_t repeat) const;
  std::map<int64_t, std::shared_ptr<ProcessGroup>> groups_of_slices(const ModelConfig& model);
  // The ranks of the stages that have the embedding and the head, with this one's other places;
  // empty: one table is on one rank, or this rank is on neither stage.
  std::vector<int64_t> ends_of_table(const ModelConfig& model) const;
  void make_channels(int depth, const GroupOptions& how);

  std::shared_ptr<World> world_;
  LayoutChoice choice_;
  ParallelConfig config_;
  ProcessMesh mesh_;
  Sharing sharing_;
  TokenSharding tokens_;
  KvExchange keys_;
  TokenSharding microbatch_;
  std::shared_ptr<ProcessGroup> experts_;
  NodeGroups dispatch_groups_;
  std::shared_ptr<Turns> turns_;  // null: nothing runs beside anything
  std::shared_ptr<ProcessGroup> all_, host_, stage_, pipeline_;
  std::vector<int> unit_ranks_;  // of each unit, the place in the pipeline; empty: one stage
  std::shared_ptr<StageChannels> channels_ = std::make_shared<StageChannels>();
};

}  // namespace troupe
