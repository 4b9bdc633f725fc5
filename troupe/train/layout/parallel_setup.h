// What the ranks of a run make together before any of them opens data: who each is, and the groups
// that their layout needs. Early, since a rank that waits for a group's connections does not see
// that another has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "troupe/core/file/fault.h"
#include "troupe/distributed/dispatch/dispatcher_config.h"
#include "troupe/distributed/dispatch/turns.h"
#include "troupe/distributed/group/kv_exchange.h"
#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/group/stage_channels.h"
#include "troupe/distributed/group/token_sharding.h"
#include "troupe/distributed/parallel_state/parallel_state.h"
#include "troupe/distributed/world/world.h"
#include "troupe/nn/attention/context_slice.h"
#include "troupe/nn/model/model.h"
#include "troupe/train/forecast/step_work.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

struct ParallelSetup {
  ParallelSetup() = default;  // one rank
  // All ranks call it, with the run of resolve(recipe, *world).
  ParallelSetup(std::shared_ptr<World> world, const ResolvedRun& run);

  ParallelState state;
  TokenSharding tokens;                   // between tensor ranks
  KvExchange keys;                        // between context ranks
  TokenSharding microbatch;               // between tensor and context ranks
  std::shared_ptr<ProcessGroup> experts;  // null: each rank has all experts
  NodeGroups dispatch;                    // the same ranks, by nodes
  std::shared_ptr<Turns> turns;           // of a backward and a forward; null: there are none
  std::vector<int> unit_ranks;            // of each unit, the stage rank; empty: one stage
  std::shared_ptr<StageChannels> channels = std::make_shared<StageChannels>();
  Sharing sharing;
};

// How a model reaches other ranks; `faults` must stay.
BuildOptions build_options(const ResolvedRun& run, const ParallelSetup& setup,
                           const Faults& faults);
// Which of the microbatches of a batch are this rank's replica's.
RankShare share_of(const ParallelState& state, int64_t microbatches);
// Which part of each row is this rank's.
RowCut row_cut(const ResolvedRun& run, const ParallelSetup& setup);
// "8 ranks (torchrun): experts over 4 ranks, optimizer state over 8 ranks"
std::string description(const ResolvedRun& run, const ParallelSetup& setup);

}  // namespace troupe
