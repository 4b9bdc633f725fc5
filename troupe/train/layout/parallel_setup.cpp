#include "troupe/train/layout/parallel_setup.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "troupe/distributed/world/node_groups.h"
#include "troupe/train/layout/expert_dispatch.h"
#include "troupe/train/layout/shard_meshes.h"

namespace troupe {
namespace {

// Rows on their way to experts do not wait for sums and gathers of state between the same ranks.
constexpr const char* kRows = "rows";
constexpr const char* kTensor = "tensor";    // nor do tokens on their way to a product
constexpr const char* kContext = "context";  // nor keys on their way to queries

std::shared_ptr<StageChannels> channels_of(const ParallelState& state,
                                           const std::vector<int>& unit_ranks, int depth,
                                           const GroupOptions& how) {
  StageChannels::Shape shape{
      .own = state.stage_rank(), .depth = depth, .device = state.world().device()};
  shape.ranks = state.mesh().ranks_of(GroupKind::kPipeline, state.rank());
  for (size_t unit = 1; unit < unit_ranks.size(); ++unit) {
    const std::pair link{unit_ranks[unit - 1], unit_ranks[unit]};
    if (link.first != link.second) shape.links.push_back(link);
  }
  const auto make = [&state](const GroupOptions& options) {
    return [&state, options](const std::vector<int64_t>& ranks, const std::string& channel) {
      return state.world().group(ranks, channel, options);
    };
  };
  const World& world = state.world();
  GroupOptions staged = how;
  staged.staged = true;
  const bool by_nccl = world.device().is_cuda() && !world.staged() && !world.played();
  return std::make_shared<StageChannels>(
      std::move(shape), make(how), by_nccl ? StageChannels::MakeGroup(make(staged)) : nullptr);
}

}  // namespace

ParallelSetup::ParallelSetup(std::shared_ptr<World> world, const ResolvedRun& run)
    : state(std::move(world), shape_of(run.parallel)) {
  if (state.alone()) return;
  const ParallelConfig& config = run.parallel;
  const GroupOptions awaited{.high_priority = config.comm_priority == CommPriority::kHigh};
  GroupOptions rows = awaited;
  rows.max_blocks = config.comm_blocks;
  if (config.pipeline > 1) {
    const StepWork stages = stages_of(config, run.model);
    unit_ranks = chunk_ranks(stages);
    channels = channels_of(state, unit_ranks, stages.depth, awaited);
  }
  tokens = TokenSharding(state.group(GroupKind::kTensor, kTensor, awaited));
  if (config.context > 1) {
    keys = KvExchange(state.group(GroupKind::kContext, kContext, awaited));
    microbatch = TokenSharding(state.group(GroupKind::kMicrobatch, kContext, awaited));
  }
  if (state.mesh().size(GroupKind::kExperts) > 1) {
    experts = state.group(GroupKind::kExperts, kRows, rows);
  }
  dispatch.all = experts;
  if (config.overlap == Overlap::kExperts) turns = std::make_shared<Turns>(state.world().device());
  if (experts && config.node_ranks > 0) {
    dispatch = node_groups(state.world(), experts, config.node_ranks, kRows, rows);
  }
  sharing = share_state(state, run, experts, unit_ranks);
}

BuildOptions build_options(const ResolvedRun& run, const ParallelSetup& setup,
                           const Faults& faults) {
  const ParallelConfig& config = run.parallel;
  const std::shared_ptr<World>& world = setup.state.shared_world();
  const std::shared_ptr<Pulse> pulse(world, &world->pulse());
  const TransferMonitor watch(pulse, faults);
  BuildOptions out;
  out.tensor = {.sharding = setup.tokens.watched(watch),
                .split_vocab = config.split_vocab == CutKind::kOn,
                .split_shared = config.split_shared == CutKind::kOn,
                .keys = setup.keys.watched(watch),
                .microbatch = setup.microbatch};
  for (size_t unit = 0; unit < setup.unit_ranks.size(); ++unit) {
    if (setup.unit_ranks[unit] == setup.state.stage_rank()) {
      out.units.push_back(static_cast<int64_t>(unit));
    }
  }
  if (config.context > 1 && config.context_method == ContextMethod::kHeads) {
    out.tensor.head_exchange = HeadExchange(setup.keys.group(), watch);
  }
  if (config.context > 1 && config.context_method == ContextMethod::kRing) {
    out.tensor.ring = RingAttention(setup.keys.group(), watch);
  }
  if (setup.experts) {
    out.dispatcher = dispatcher_factory(config, setup.dispatch, setup.turns, pulse, faults,
                                        run.run.bits == Bits::kLayout);
  }
  return out;
}

RankShare share_of(const ParallelState& state, int64_t microbatches) {
  return share_of(microbatches, state.data_index(), state.data_ranks());
}

RowCut row_cut(const ResolvedRun& run, const ParallelSetup& setup) {
  return {setup.state.context_ranks(), setup.state.context_rank(), run.model.mtp.depth,
          run.parallel.context_dealing};
}

std::string description(const ResolvedRun& run, const ParallelSetup& setup) {
  const ParallelState& state = setup.state;
  const ParallelConfig& config = run.parallel;
  if (state.alone()) return "1 rank";
  std::string out = std::to_string(state.size());
  out.append(" ranks (").append(state.world().place().source);
  out.append(state.world().staged() ? ", through host memory over Gloo): " : "): ");
  const auto over = [](int64_t ranks) { return " over " + std::to_string(ranks) + " ranks"; };
  if (state.stage_ranks() > 1) {
    out += "stages" + over(state.stage_ranks()) + " (" + to_text(config.schedule) + "), ";
  }
  if (!setup.tokens.alone()) out += "matrices" + over(setup.tokens.ranks()) + ", ";
  if (!setup.keys.alone()) out += "sequences" + over(setup.keys.ranks()) + ", ";
  if (setup.experts) out += "experts" + over(state.mesh().shape().expert) + ", ";
  if (config.expert_tensor > 1) out += "their slices" + over(config.expert_tensor) + ", ";
  const int64_t owners =
      std::ssize(state.mesh().owners_of(state.rank(), state.mesh().shape().tensor));
  switch (config.shard) {
    case ShardKind::kFull: return out + "all state" + over(owners);
    case ShardKind::kZero1: return out + "optimizer state" + over(owners);
    default: return out + "all state on every rank";
  }
}

}  // namespace troupe
