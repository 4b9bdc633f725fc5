#include "troupe/train/ranks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/yaml.h"
#include "troupe/core/file/hash.h"
#include "troupe/distributed/dispatch/a2a_dispatcher.h"
#include "troupe/distributed/dispatch/allgather_dispatcher.h"
#include "troupe/distributed/dispatch/watched_dispatcher.h"
#include "troupe/distributed/group/rank_list.h"
#include "troupe/distributed/world/node_groups.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/forecast.h"

namespace troupe {
namespace {

// Rows on their way to experts do not wait for sums and gathers of state between the same ranks.
constexpr const char* kRows = "rows";
constexpr std::chrono::milliseconds kReadTime{60'000};

// All ranks choose alike: memory is that of the least; hosts of unequal numbers of ranks count as
// several of so many ranks as divide all of them, and as one a rank where ranks are dealt over
// them.
RanksAtHand agreed(const Recipe& recipe, World& world) {
  RanksAtHand ranks{.world = world.size(),
                    .per_host = 0,
                    .memory = available_memory(recipe, world.place().local_size),
                    .on_gpu = runs_on_gpu(recipe)};
  const std::string mine = std::to_string(static_cast<int64_t>(ranks.memory)) + ' ' +
                           std::to_string(world.place().local_size);
  for (const std::string& text : world.gather_texts("memory", mine)) {
    const size_t blank = std::min(text.find(' '), text.size());
    const int64_t bytes = number_of_peer(text.substr(0, blank), "a rank's memory");
    ranks.memory = std::min(ranks.memory, static_cast<double>(bytes));
    ranks.per_host = std::gcd(
        ranks.per_host,
        number_of_peer(text.substr(std::min(blank + 1, text.size())), "the ranks of a host"));
  }
  if (!world.hosts_in_rows()) ranks.per_host = 1;
  return ranks;
}

// Rank 0's choice, since processors of different kinds round differently and ways may be as fast.
// The others make it too: what cannot be is an error of each.
LayoutChoice chosen(const Recipe& recipe, World& world) {
  const RanksAtHand ranks = agreed(recipe, world);
  LayoutChoice out = choose_layout(recipe, ranks, machine_of(recipe, ranks.on_gpu));
  out.parallel = settled(out.parallel, needs_of(recipe, ranks.world, ranks.per_host));
  std::ostringstream own;
  if (world.rank() == 0) print_config(own, out);
  const std::string first = world.gather_texts("layout", own.str())[0];
  if (world.rank() != 0) read_config(parse_yaml(first, "rank 0's layout"), out);
  return out;
}

void check_equal(const std::string& what, const std::vector<std::string>& all) {
  std::map<std::string, std::vector<int64_t>> who;
  for (size_t r = 0; r < all.size(); ++r) who[all[r]].push_back(static_cast<int64_t>(r));
  if (who.size() == 1) return;
  std::string told;
  for (const auto& [value, ranks] : who) {
    if (!told.empty()) told += "; ";
    told.append("rank(s) ").append(rank_list(ranks)).append(": ").append(value);
  }
  fail(Code::kRanksDiffer, what, "differs between ranks - " + told);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

}  // namespace

void require_equal(World& world, const std::string& what, const std::string& text) {
  check_equal(what, world.gather_texts(what, text));
}

void require_equal_lines(World& world, const std::string& what, const std::string& lines) {
  const std::vector<std::string> hashes =
      world.gather_texts(what, hex(hash128(std::as_bytes(std::span(lines)))));
  if (std::ranges::count(hashes, hashes[0]) == std::ssize(hashes)) return;
  const std::string key = "lines of the " + what;
  if (world.rank() == 0) world.board().post(key, lines);
  const std::vector<std::string> own = lines_of(lines),
                                 first = lines_of(world.board().read(key, kReadTime));
  const auto line = [&](size_t i) { return i < own.size() ? own[i] : "nothing more"; };
  size_t at = 0;
  while (at < first.size() && line(at) == first[at]) ++at;
  if (world.rank() == 0) at = std::numeric_limits<int32_t>::max();
  for (const std::string& of_rank : world.gather_texts(key, std::to_string(at))) {
    at = std::min(at, static_cast<size_t>(number_of_peer(of_rank, "the number of a line")));
  }
  const std::string text = line(at);
  const size_t begin = std::min(text.size(), text.find_first_not_of(' '));
  check_equal(what, world.gather_texts(key, text.substr(begin)));
  check_equal(what, hashes);
}

Ranks::Ranks() : world_(std::make_shared<World>()), mesh_(1, {}) {}

Ranks::Ranks(std::shared_ptr<World> world, const Recipe& recipe)
    : world_(std::move(world)),
      choice_(chosen(recipe, *world_)),
      config_(choice_.parallel),
      mesh_(world_->size(), shape_of(config_)) {
  if (alone()) return;
  const auto group = [&](GroupKind kind, const std::string& channel = {}) {
    return world_->group(mesh_.ranks_of(kind, world_->rank()), channel);
  };
  all_ = world_->all();
  host_ = world_->processors();
  if (mesh_.shape().expert > 1) experts_ = group(GroupKind::kExpert, kRows);
  if (experts_ && config_.dispatcher == DispatcherKind::kTwoLevel) {
    nodes_ = node_groups(*world_, experts_, config_.node_ranks, kRows);
  }
  sharing_ = {.alone = false,
              .full = config_.shard == ShardKind::kFull,
              .dense = {group(GroupKind::kShard), group(GroupKind::kReplicate)},
              .experts = {group(GroupKind::kExpertShard), group(GroupKind::kExpertReplicate)},
              .sum_type = config_.sum == SumType::kFp32 ? at::kFloat : at::kBFloat16};
}

BuildOptions Ranks::build_options(const Faults& faults) const {
  BuildOptions out;
  if (!experts_) return out;
  const auto make = [group = experts_, nodes = nodes_, mode = config_.dispatch,
                     kind = config_.dispatcher, wire = config_.wire](const Placement& placement) {
    switch (kind) {
      case DispatcherKind::kTwoLevel: return two_level_dispatcher(nodes, placement, mode, wire);
      case DispatcherKind::kAllGather: return allgather_dispatcher(group, placement, mode, wire);
      default: return a2a_dispatcher(group, placement, mode, wire);
    }
  };
  out.dispatcher = [make, group = experts_, split = config_.placement, world = world_, &faults](
                       int64_t, const MoeConfig& moe) {
    const int64_t ranks = group->size();
    const auto few = [&] {
      return split == ExpertSplit::kUneven ? in_runs(moe.experts, ranks)
                                           : contiguous(moe.experts, ranks);
    };
    const Placement placement =
        ranks <= moe.experts ? few() : hidden_sharded(moe.experts, ranks, moe.ffn.hidden);
    return watched_dispatcher(make(placement), std::shared_ptr<Pulse>(world, &world->pulse()),
                              faults);
  };
  return out;
}

Schedule Ranks::schedule(StepWork work) const {
  work.replicas = static_cast<int>(size());
  return step_schedule(config_, work);
}

SumOver Ranks::sum_over_all() const {
  if (alone()) return {};
  return [all = all_](const at::Tensor& x) { return all->summed(x); };
}

std::vector<double> Ranks::summed(std::vector<double> values) const {
  if (alone()) return values;
  const at::Tensor sum = host_->summed(at::tensor(values, at::kDouble));
  return {sum.const_data_ptr<double>(), sum.const_data_ptr<double>() + sum.numel()};
}

Peers Ranks::peers() const {
  if (alone()) return {};
  return {.rank = static_cast<int>(rank()),
          .world = static_cast<int>(size()),
          .all_gather =
              [world = world_](const std::string& mine) {
                // A disk may stall, and no step waits for it.
                return world->gather_texts("checkpoint", mine, World::Patience::kWhileHeard);
              },
          .swap_bytes =
              [group = host_](const ByteSwap& bytes) {
                const at::Tensor out = at::empty({std::ssize(bytes.out)}, at::kByte);
                const at::Tensor in = at::empty({std::ssize(bytes.in)}, at::kByte);
                std::ranges::copy(bytes.out, static_cast<std::byte*>(out.mutable_data_ptr()));
                group->exchange(in, out, bytes.from, bytes.to).wait();
                std::copy_n(static_cast<const std::byte*>(in.const_data_ptr()), in.numel(),
                            bytes.in.begin());
              }};
}

void Ranks::require_equal(const std::string& what, const std::string& text) const {
  if (!alone()) troupe::require_equal(*world_, what, text);
}

std::string Ranks::description() const {
  if (alone()) return "1 rank";
  std::string out = std::to_string(size());
  out.append(" ranks (").append(world_->place().source).append("): ");
  if (experts_) {
    out += "experts over " + std::to_string(mesh_.shape().expert) + " ranks, ";
  }
  const std::string over = std::to_string(mesh_.size(GroupKind::kShard)) + " ranks";
  switch (config_.shard) {
    case ShardKind::kFull: return out + "all state over " + over;
    case ShardKind::kZero1: return out + "optimizer state over " + over;
    default: return out + "all state on every rank";
  }
}

}  // namespace troupe
