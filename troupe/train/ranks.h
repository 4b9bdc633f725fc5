// The ranks of a run, as the trainer sees them: who holds which experts and which part of the
// state, which microbatches are whose, and what is agreed on. A run of one rank is one too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troupe/checkpoint/peers.h"
#include "troupe/core/file/fault.h"
#include "troupe/distributed/dispatch/two_level_dispatcher.h"
#include "troupe/distributed/mesh/mesh.h"
#include "troupe/distributed/world/world.h"
#include "troupe/nn/models/model.h"
#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/step_work.h"
#include "troupe/train/params/param_store.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// All ranks have the same text, or E2010 that tells which have what of it. `lines`: of its first
// line that is not the same everywhere.
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
  World& world() { return *world_; }
  const Mesh& mesh() const { return mesh_; }
  const ParallelConfig& parallel() const { return config_; }  // every choice made

  // How the model reaches its experts (with `faults`, which must stay, on the way), and how the
  // store shares its state.
  BuildOptions build_options(const Faults& faults) const;
  Sharing sharing() const { return sharing_; }
  // Between which experts lie; null: all experts are here.
  const std::shared_ptr<RankGroup>& expert_group() const { return experts_; }
  Schedule schedule(StepWork work) const;

  using Share = RankShare;
  Share share_of(int64_t all) const { return troupe::share_of(all, rank(), size()); }

  SumOver sum_over_all() const;  // of the device's tensors; absent: one rank
  std::vector<double> summed(std::vector<double> values) const;  // small, on the host
  Peers peers() const;
  void require_equal(const std::string& what, const std::string& text) const;
  std::string description() const;  // "8 ranks (torchrun): experts over 4, state over 8 (zero1)"
  // What rank 0 chose of what the recipe leaves open; of one rank, which has no layout, nothing.
  const LayoutChoice& choice() const { return choice_; }

 private:
  std::shared_ptr<World> world_;
  LayoutChoice choice_;
  ParallelConfig config_;
  Mesh mesh_;
  Sharing sharing_;
  std::shared_ptr<RankGroup> experts_;
  NodeGroups nodes_;  // two_level
  std::shared_ptr<RankGroup> all_, host_;
};

}  // namespace troupe
