#include "troupe/train/ranks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/yaml.h"
#include "troupe/core/file/hash.h"
#include "troupe/distributed/dispatch/dispatchers.h"
#include "troupe/distributed/dispatch/watched_dispatcher.h"
#include "troupe/distributed/group/rank_list.h"
#include "troupe/distributed/group/symmetric_heap.h"
#include "troupe/distributed/world/node_groups.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/forecast.h"

namespace troupe {
namespace {

// Rows on their way to experts do not wait for sums and gathers of state between the same ranks.
constexpr const char* kRows = "rows";
constexpr const char* kTensor = "tensor";    // nor do tokens on their way to a product
constexpr const char* kContext = "context";  // nor keys on their way to queries
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
  for (const std::string& text : world.all_gather_texts("memory", mine)) {
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

// How many parts of the hidden width an expert's matrix is cut into.
int64_t slices_of(const Param& p) {
  int64_t out = 1;
  for (size_t d = 1; d < p.size.size(); ++d) {
    if (p.size[d] > 0) out = std::max(out, p.global[d] / p.size[d]);
  }
  return out;
}

// Rank 0's choice, since processors of different kinds round differently and ways may be as fast.
// The others make it too: what cannot be is an error of each.
LayoutChoice chosen(const Recipe& recipe, World& world) {
  const RanksAtHand ranks = agreed(recipe, world);
  LayoutChoice out = choose_layout(recipe, ranks, machine_of(recipe, ranks.on_gpu));
  out.parallel = settled(out.parallel, needs_of(recipe, ranks.world, ranks.per_host));
  std::ostringstream own;
  if (world.rank() == 0) print_config(own, out);
  const std::string first = world.all_gather_texts("layout", own.str())[0];
  if (world.rank() != 0) read_config(parse_yaml(first, "rank 0's layout"), out);
  return out;
}

void check_equal(const std::string& what, const std::vector<std::string>& all) {
  std::map<std::string, std::vector<int64_t>> who;
  for (size_t r = 0; r < all.size(); ++r) who[all[r]].push_back(static_cast<int64_t>(r));
  if (who.size() == 1) return;
  std::string list;
  for (const auto& [value, ranks] : who) {
    if (!list.empty()) list += "; ";
    list.append("rank(s) ").append(rank_list(ranks)).append(": ").append(value);
  }
  fail(Code::kRanksDiffer, what, "differs between ranks - " + list);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

}  // namespace

void require_equal(World& world, const std::string& what, const std::string& text) {
  check_equal(what, world.all_gather_texts(what, text));
}

void require_equal_lines(World& world, const std::string& what, const std::string& lines) {
  const std::vector<std::string> hashes =
      world.all_gather_texts(what, hex(hash128(std::as_bytes(std::span(lines)))));
  if (std::ranges::count(hashes, hashes[0]) == std::ssize(hashes)) return;
  const std::string key = "lines of the " + what;
  if (world.rank() == 0) world.store().post(key, lines);
  const std::vector<std::string> own = lines_of(lines),
                                 first = lines_of(world.store().read(key, kReadTime));
  const auto line = [&](size_t i) { return i < own.size() ? own[i] : "nothing more"; };
  size_t at = 0;
  while (at < first.size() && line(at) == first[at]) ++at;
  if (world.rank() == 0) at = std::numeric_limits<int32_t>::max();
  for (const std::string& of_rank : world.all_gather_texts(key, std::to_string(at))) {
    at = std::min(at, static_cast<size_t>(number_of_peer(of_rank, "the number of a line")));
  }
  const std::string text = line(at);
  const size_t begin = std::min(text.size(), text.find_first_not_of(' '));
  check_equal(what, world.all_gather_texts(key, text.substr(begin)));
  check_equal(what, hashes);
}

Ranks::Ranks() : world_(std::make_shared<World>()), mesh_(1, {}) {
  for (int64_t ParallelConfig::*axis :
       {&ParallelConfig::tensor, &ParallelConfig::context, &ParallelConfig::pipeline,
        &ParallelConfig::expert_tensor}) {
    config_.*axis = 1;
  }
}

Ranks::Ranks(std::shared_ptr<World> world, const Recipe& recipe)
    : world_(std::move(world)),
      choice_(chosen(recipe, *world_)),
      config_(choice_.parallel),
      mesh_(world_->size(), shape_of(config_)) {
  if (alone()) return;
  const auto group = [&](GroupKind kind, const std::string& channel = {},
                         const GroupOptions& how = {}) {
    return world_->group(mesh_.ranks_of(kind, world_->rank()), channel, how);
  };
  const GroupOptions awaited{.high_priority = config_.comm_priority == CommPriority::kHigh};
  GroupOptions rows = awaited;
  rows.max_blocks = config_.comm_blocks;
  all_ = world_->all();
  host_ = world_->processors();
  stage_ = group(GroupKind::kStage);
  pipeline_ = group(GroupKind::kPipeline);
  if (config_.pipeline > 1) {
    const StepWork stages = stages_of(config_, recipe.model);
    unit_ranks_ = chunk_ranks(stages);
    world_->pulse().set_stage(stage_rank(), stage_ranks());
    make_channels(stages.depth, awaited);
  }
  tokens_ = TokenSharding(group(GroupKind::kTensor, kTensor, awaited));
  if (config_.context > 1) {
    keys_ = KvExchange(group(GroupKind::kContext, kContext, awaited));
    microbatch_ = TokenSharding(group(GroupKind::kMicrobatch, kContext, awaited));
  }
  if (mesh_.size(GroupKind::kExperts) > 1) experts_ = group(GroupKind::kExperts, kRows, rows);
  dispatch_groups_.all = experts_;
  if (config_.overlap == Overlap::kExperts) turns_ = std::make_shared<Turns>(world_->device());
  if (experts_ && config_.node_ranks > 0) {
    dispatch_groups_ = node_groups(*world_, experts_, config_.node_ranks, kRows, rows);
  }
  sharing_ = {.alone = false,
              .full = config_.shard == ShardKind::kFull,
              .owners = owners_by_box(recipe.model, needs_whole_matrices(recipe.train.optimizer) &&
                                                        !needs_whole_state(recipe.train.optimizer)),
              .sum_type = config_.sum == SumType::kFp32 ? at::kFloat : at::kBFloat16};
}

void Ranks::make_channels(int depth, const GroupOptions& how) {
  StageChannels::Shape shape{.own = stage_rank(), .depth = depth, .device = world_->device()};
  shape.ranks = mesh_.ranks_of(GroupKind::kPipeline, rank());
  for (size_t unit = 1; unit < unit_ranks_.size(); ++unit) {
    const std::pair link{unit_ranks_[unit - 1], unit_ranks_[unit]};
    if (link.first != link.second) shape.links.push_back(link);
  }
  channels_ = std::make_shared<StageChannels>(
      std::move(shape), [&](const std::vector<int64_t>& ranks, const std::string& channel) {
        return world_->group(ranks, channel, how);
      });
}

std::vector<int64_t> Ranks::ends_of_table(const ModelConfig& model) const {
  if (unit_ranks_.empty()) return {};
  std::set<int> readers = {unit_ranks_.front()};
  for (int64_t d = 1; d <= model.mtp.depth; ++d) {
    readers.insert(unit_ranks_[static_cast<size_t>(model.layers + d)]);
  }
  if (model.tie_embeddings) readers.insert(unit_ranks_.back());
  if (readers.size() == 1 || !readers.contains(static_cast<int>(stage_rank()))) return {};
  const std::vector<int64_t> stages = mesh_.ranks_of(GroupKind::kPipeline, rank());
  std::vector<int64_t> out;
  for (const int reader : readers) out.push_back(stages[static_cast<size_t>(reader)]);
  return out;
}

// One rank for each part of the matrices of which `repeat` neighbours hold the same.
std::vector<int64_t> Ranks::parts_of_matrices(int64_t repeat) const {
  const std::vector<int64_t> all = mesh_.ranks_of(GroupKind::kTensor, world_->rank());
  const auto own = std::ranges::find(all, world_->rank()) - all.begin();
  std::vector<int64_t> out;
  for (auto i = own % repeat; i < std::ssize(all); i += repeat) {
    out.push_back(all[static_cast<size_t>(i)]);
  }
  return out;
}

// Of each number of slices that layers' experts are cut into, the ranks with those of the own ones.
std::map<int64_t, std::shared_ptr<ProcessGroup>> Ranks::groups_of_slices(const ModelConfig& model) {
  std::map<int64_t, std::shared_ptr<ProcessGroup>> out;
  if (!experts_) return out;
  for (int64_t i = 0; i < model.layers + model.mtp.depth; ++i) {
    const LayerConfig layer = layer_config(model, i);
    if (!layer.moe) continue;
    const ExpertPlacement placement = placement_of(*layer.moe);
    if (placement.slices() == 1 || out.contains(placement.slices())) continue;
    std::vector<int64_t> ranks;
    for (const int32_t place : placement.owners(placement.held_by(experts_->rank()).front())) {
      ranks.push_back(experts_->ranks()[static_cast<size_t>(place)]);
    }
    out[placement.slices()] = world_->group(ranks);
  }
  return out;
}

// The groups are made here, in one order on all ranks. Ranks of a pipeline that read one table (its
// two ends, and those of MTP modules) have a copy of its state each, cut over their own stage as
// all else there, and are replicas of each other: their gradients are summed together, and no
// stage's gather waits for another stage (PL12).
std::function<Owners(const NamedParam&)> Ranks::owners_by_box(const ModelConfig& model,
                                                              bool matrices) {
  const int64_t rank = world_->rank(), tensor = mesh_.shape().tensor;
  const auto group = [&](GroupKind kind) { return world_->group(mesh_.ranks_of(kind, rank)); };
  std::set<int64_t> repeats = {1, tensor};
  for (int64_t i = 0; i < model.layers + model.mtp.depth; ++i) {
    const int64_t heads = layer_config(model, i).kv_heads;
    if (!model.mla && heads < tensor) repeats.insert(tensor / heads);
  }
  const bool none = config_.shard == ShardKind::kNone;
  const std::string stage =
      stage_ranks() == 1 ? "" : " of stage rank " + std::to_string(stage_rank());
  const std::vector<int64_t> ends = ends_of_table(model);
  std::map<int64_t, Owners> dense, tables;
  for (const int64_t repeat : repeats) {
    const int64_t place = rank % tensor / repeat;
    const std::string part = repeat == tensor ? ""
                                              : " of tensor part " + std::to_string(place + 1) +
                                                    '/' + std::to_string(tensor / repeat);
    // Where nothing is shared out, all that hold the box are replicas.
    dense[repeat] = {
        none ? world_->group({rank}) : world_->group(mesh_.owners_of(rank, repeat)),
        none ? world_->group(mesh_.sharers_of(rank, repeat)) : group(GroupKind::kReplicate),
        "dense" + part + stage};
    if (matrices) dense[repeat].parts = world_->group(parts_of_matrices(repeat));
    if (ends.empty()) continue;
    std::vector<int64_t> both;
    for (const int64_t end : ends) {
      const std::vector<int64_t> of_end =
          none ? mesh_.sharers_of(end, repeat) : mesh_.ranks_of(GroupKind::kReplicate, end);
      both.insert(both.end(), of_end.begin(), of_end.end());
    }
    std::ranges::sort(both);
    tables[repeat] = {dense[repeat].owners, world_->group(both), "tables" + part};
  }
  const std::vector<int64_t> holders = mesh_.ranks_of(GroupKind::kExperts, rank);
  const auto place = std::ranges::find(holders, rank) - holders.begin();
  const Owners experts = {none ? world_->group({rank}) : group(GroupKind::kExpertShard),
                          group(none ? GroupKind::kExpertData : GroupKind::kExpertReplicate),
                          "experts of place " + std::to_string(place) + stage};
  std::map<int64_t, std::shared_ptr<ProcessGroup>> slices;  // by their number
  if (matrices) slices = groups_of_slices(model);
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

BuildOptions Ranks::build_options(const Faults& faults) const {
  BuildOptions out;
  const TransferMonitor watch(std::shared_ptr<Pulse>(world_, &world_->pulse()), faults);
  out.tensor = {.sharding = tokens_.watched(watch),
                .split_vocab = config_.split_vocab == CutKind::kOn,
                .split_shared = config_.split_shared == CutKind::kOn,
                .keys = keys_.watched(watch),
                .microbatch = microbatch_};
  for (size_t unit = 0; unit < unit_ranks_.size(); ++unit) {
    if (unit_ranks_[unit] == stage_rank()) out.units.push_back(static_cast<int64_t>(unit));
  }
  if (config_.context > 1 && config_.context_method == ContextMethod::kHeads) {
    out.tensor.head_exchange = HeadExchange(keys_.group(), watch);
  }
  if (config_.context > 1 && config_.context_method == ContextMethod::kRing) {
    out.tensor.ring = RingAttention(keys_.group(), watch);
  }
  if (!experts_) return out;
  const auto make = [config = config_,
                     groups = dispatch_groups_](const ExpertPlacement& placement) {
    return build(config.dispatcher, groups, placement,
                 {.mode = config.dispatch, .wire = config.wire});
  };
  out.dispatcher = [make, this, world = world_, turns = turns_, &faults](int64_t,
                                                                         const MoeConfig& moe) {
    const std::shared_ptr<Pulse> pulse(world, &world->pulse());
    std::unique_ptr<Dispatcher> made = watched_dispatcher(make(placement_of(moe)), pulse, faults);
    return turns ? turning_dispatcher(std::move(made), turns, pulse) : std::move(made);
  };
  return out;
}

std::function<void(const Ranks::Part&, const Ranks::Part&)> Ranks::both() const {
  if (!turns_) return {};
  return [turns = turns_](const Part& back, const Part& ahead) { turns->both(back, ahead); };
}

ExpertPlacement Ranks::placement_of(const MoeConfig& moe) const {
  const int64_t ranks = experts_ ? experts_->size() : 1, slices = config_.expert_tensor;
  if (ranks / slices > moe.experts) return hidden_sharded(moe.experts, ranks, moe.ffn.hidden);
  if (slices > 1) return sliced(moe.experts, ranks / slices, slices, moe.ffn.hidden);
  return config_.placement == ExpertSplit::kUneven ? in_runs(moe.experts, ranks)
                                                   : contiguous(moe.experts, ranks);
}

Schedule Ranks::schedule(StepWork work) const {
  work.replicas = static_cast<int>(size()) / stage_ranks();
  return step_schedule(config_, work);
}

SumOver Ranks::sum_over_stage() const {
  if (alone()) return {};
  return [stage = stage_](const at::Tensor& x) { return stage->all_reduced(x); };
}

std::vector<double> Ranks::of_stages(std::vector<double> values) const {
  if (stage_ranks() == 1) return values;
  const at::Tensor own = at::tensor(values, at::kDouble).to(world_->device());
  const at::Tensor sum = pipeline_->all_reduced(own).cpu();
  return {sum.const_data_ptr<double>(), sum.const_data_ptr<double>() + sum.numel()};
}

SumOver Ranks::sum_over_all() const {
  if (alone()) return {};
  return [all = all_](const at::Tensor& x) { return all->all_reduced(x); };
}

at::Tensor Ranks::missed_rows(const c10::Device& device) const {
  const SymmetricHeap* heap = experts_ ? experts_->heap() : nullptr;
  return heap != nullptr ? heap->gave_up()
                         : at::zeros({}, at::TensorOptions(at::kDouble).device(device));
}

void Ranks::require_rows(double missed) const {
  if (missed == 0) return;
  if (experts_ && experts_->heap() != nullptr) experts_->heap()->check_device();
  fail(Code::kRankLost, "rows of experts", "are missing on", missed,
       "rank(s), whose peers gave none in time; nothing of this step is kept");
}

std::vector<double> Ranks::summed(std::vector<double> values) const {
  if (alone()) return values;
  const at::Tensor sum = host_->all_reduced(at::tensor(values, at::kDouble));
  return {sum.const_data_ptr<double>(), sum.const_data_ptr<double>() + sum.numel()};
}

Peers Ranks::peers() const {
  if (alone()) return {};
  return {.rank = static_cast<int>(rank()),
          .world = static_cast<int>(size()),
          .all_gather =
              [world = world_](const std::string& mine) {
                // A disk may stall, and no step waits for it.
                return world->all_gather_texts("checkpoint", mine, World::Patience::kWhileAlive);
              },
          .swap_bytes =
              [group = host_](const ByteSwap& bytes) {
                const at::Tensor out = at::empty({std::ssize(bytes.out)}, at::kByte);
                const at::Tensor in = at::empty({std::ssize(bytes.in)}, at::kByte);
                std::ranges::copy(bytes.out, static_cast<std::byte*>(out.mutable_data_ptr()));
                group->all_to_all(in, out, bytes.from, bytes.to).wait();
                std::copy_n(static_cast<const std::byte*>(in.const_data_ptr()), in.numel(),
                            bytes.in.begin());
              }};
}

std::vector<std::string> Ranks::gather(const std::string& topic, const std::string& mine) const {
  return alone() ? std::vector{mine} : world_->all_gather_texts(topic, mine);
}

void Ranks::require_equal(const std::string& what, const std::string& text) const {
  if (!alone()) troupe::require_equal(*world_, what, text);
}

std::string Ranks::description() const {
  if (alone()) return "1 rank";
  std::string out = std::to_string(size());
  out.append(" ranks (").append(world_->place().source).append("): ");
  const auto over = [](int64_t ranks) { return " over " + std::to_string(ranks) + " ranks"; };
  if (stage_ranks() > 1) {
    out += "stages" + over(stage_ranks()) + " (" + to_text(config_.schedule) + "), ";
  }
  if (!tokens_.alone()) out += "matrices" + over(tokens_.ranks()) + ", ";
  if (!keys_.alone()) out += "sequences" + over(keys_.ranks()) + ", ";
  if (experts_) out += "experts" + over(mesh_.shape().expert) + ", ";
  if (config_.expert_tensor > 1) out += "their slices" + over(config_.expert_tensor) + ", ";
  const int64_t owners = std::ssize(mesh_.owners_of(rank(), mesh_.shape().tensor));
  switch (config_.shard) {
    case ShardKind::kFull: return out + "all state" + over(owners);
    case ShardKind::kZero1: return out + "optimizer state" + over(owners);
    default: return out + "all state on every rank";
  }
}

}  // namespace troupe
