#include "troupe/train/forecast/layout_forecast.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/number/exact_sum.h"
#include "troupe/distributed/dispatch/wire.h"
#include "troupe/nn/config/costs.h"
#include "troupe/nn/model/model.h"
#include "troupe/schedule/compute_order.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/forecaster.h"
#include "troupe/train/forecast/key_traffic.h"
#include "troupe/train/forecast/mfu.h"
#include "troupe/train/forecast/model_memory.h"
#include "troupe/train/forecast/step_work.h"

namespace troupe {
namespace {

// The sharing ranks of one kind of parameters.
struct ShardGroups {
  GroupTopology owners, replicas;
  GroupTopology parts = {};  // those that together have the whole of a matrix
};

// `ranks` ascend.
int64_t hosts_of(const std::vector<int64_t>& ranks, const Machine& machine) {
  int64_t out = 0, last = -1;
  for (const int64_t rank : ranks) {
    const int64_t host = rank / machine.ranks_per_host;
    out += host != last;
    last = host;
  }
  return out;
}

GroupTopology topology_of(const std::vector<int64_t>& ranks, const Machine& machine) {
  return {static_cast<int64_t>(ranks.size()), hosts_of(ranks, machine)};
}

GroupTopology topology_of(const ProcessMesh& mesh, GroupKind kind, const Machine& machine) {
  return topology_of(mesh.ranks_of(kind, 0), machine);
}

// The spread of every n-th of the ranks.
GroupTopology every(const std::vector<int64_t>& ranks, int64_t n, const Machine& machine) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < ranks.size(); i += static_cast<size_t>(n)) out.push_back(ranks[i]);
  return topology_of(out, machine);
}

// The ranks that share dense parameters of which `repeat` neighbors on the tensor axis have copies.
ShardGroups shard_groups_of(const ProcessMesh& mesh, int64_t repeat, ShardKind shard,
                            const Machine& machine) {
  const bool none = shard == ShardKind::kNone;
  return {none ? GroupTopology{1, 1} : topology_of(mesh.owners_of(0, repeat), machine),
          none ? topology_of(mesh.sharers_of(0, repeat), machine)
               : topology_of(mesh, GroupKind::kReplicate, machine),
          every(mesh.ranks_of(GroupKind::kTensor, 0), repeat, machine)};
}

// The ranks that share the experts of a layer with `experts` of them. Slices of one expert are on
// neighboring ranks or, with more ranks than experts, on ranks that are `experts` apart.
ShardGroups expert_shard_groups(const ProcessMesh& mesh, const ParallelConfig& parallel,
                                int64_t experts, const Machine& machine) {
  std::vector<int64_t> slices = mesh.ranks_of(GroupKind::kExperts, 0);
  const auto neighbors = static_cast<size_t>(parallel.expert_tensor);
  if (neighbors > 1 && neighbors < slices.size()) slices.resize(neighbors);
  const GroupTopology parts =
      every(slices, neighbors > 1 ? 1 : std::max<int64_t>(1, experts), machine);
  if (parallel.shard == ShardKind::kNone) {
    return {{1, 1}, topology_of(mesh, GroupKind::kExpertData, machine), parts};
  }
  return {topology_of(mesh, GroupKind::kExpertShard, machine),
          topology_of(mesh, GroupKind::kExpertReplicate, machine), parts};
}

// Whether ranks sum each microbatch's gradients, so that none is kept whole (FullShard::reduce_each).
bool sums_each(const ParallelConfig& parallel) {
  const bool late = parallel.pipeline > 1 && has_late_weights(parallel.schedule);
  return parallel.shard == ShardKind::kFull && !late;
}

// Bytes of an element of a gradient between ranks; `width`: of a value.
double sum_width(const Recipe& r, const ParallelConfig& parallel, double width) {
  if (r.run.bits == Bits::kLayout) return kPairBytes;
  return parallel.sum == SumType::kFp32 ? std::max(4.0, width) : 2;
}

// How to build one rank's part of a model whose matrices are cut over ranks.
BuildOptions part_of_model(const ParallelConfig& parallel) {
  BuildOptions out;
  out.tensor = {.sharding = TokenSharding::of_sizes(parallel.tensor),
                .split_vocab = parallel.split_vocab == CutKind::kOn,
                .split_shared = parallel.split_shared == CutKind::kOn};
  return out;
}

// The spread of the group that spans most hosts: groups of 3 on hosts of 8 do not all fit into one.
GroupTopology expert_topology(const ProcessMesh& mesh, const Machine& machine) {
  GroupTopology out = topology_of(mesh, GroupKind::kExperts, machine);
  const int64_t host = machine.ranks_per_host;
  if (host % out.ranks == 0 || out.ranks % host == 0) return out;
  for (const std::vector<int64_t>& ranks : mesh.all(GroupKind::kExperts)) {
    out.hosts = std::max(out.hosts, hosts_of(ranks, machine));
  }
  return out;
}

// The mean number of groups that hold the K experts of a token, if the experts are divided over
// `groups` and token t chooses the experts t K to t K + K - 1 mod E (Force::kUniform).
double forced_holders(int64_t groups, const MoeSizes& s) {
  int64_t sum = 0;
  for (int64_t t = 0; t < s.experts; ++t) {
    std::set<int64_t> met;
    for (int64_t k = 0; k < s.top_k; ++k) {
      met.insert((t * s.top_k + k) % s.experts * groups / s.experts);
    }
    sum += static_cast<int64_t>(met.size());
  }
  return static_cast<double>(sum) / static_cast<double>(s.experts);
}

Force force_of(const RouterConfig& router) {
  const GateConfig* const gate = gate_of(router);
  return gate == nullptr ? Force::kNone : gate->force;
}

struct CostedModel {
  const Recipe& recipe;
  int64_t micro_batch;
  const Machine& machine;
  const ModelMemory& memory;
  const ModelCosts& costs;
};

// Adds up what the exchange of rows with the ranks that hold experts costs a layer.
class ExchangeCosts {
 public:
  // `tokens`: of a rank, in a microbatch.
  ExchangeCosts(const CostedModel& model, const ParallelConfig& parallel, const ProcessMesh& mesh,
                double tokens)
      : parallel_(parallel),
        machine_(model.machine),
        on_gpu_(model.memory.on_gpu),
        width_(value_width(model.recipe, model.memory.on_gpu)),
        tokens_(tokens),
        expert_ranks_(mesh.size(GroupKind::kExperts)),
        slices_(parallel.expert_tensor),
        most_held_(most_held(parallel, model.recipe.model.moe.experts)),
        forced_(force_of(model.recipe.model.moe.router)),
        all_(expert_topology(mesh, model.machine)) {
    if (parallel.node_ranks > 0) {
      const int64_t nodes = all_.ranks / parallel.node_ranks;
      across_ = {.ranks = nodes, .hosts = std::min(nodes, all_.hosts)};
      within_ = {.ranks = parallel.node_ranks, .hosts = std::max<int64_t>(1, all_.hosts / nodes)};
    }
  }

  // For the rank with most experts: its rows over the average, and its part of a layer's experts.
  double imbalance() const { return expert_ranks_ > 1 ? machine_.imbalance * most_held_ : 1; }
  double share() const { return most_held_ / static_cast<double>(expert_ranks_); }

  // Adds the exchange of row counts, then of rows to the experts and back.
  void add(const MoeSizes& s, ChunkCosts& c, StepCosts& rank) const {
    if (expert_ranks_ == 1) return;
    const auto K = static_cast<double>(s.top_k), W = static_cast<double>(expert_ranks_);
    const int64_t D = s.latent > 0 ? s.latent : s.width;
    const double width = static_cast<double>(D) * width_;  // bytes of a row, as it comes back
    const auto sent = static_cast<double>(
        wire_row_bytes(parallel_.wire, D, static_cast<int64_t>(width_)));  // and as it goes out
    const double tokens = tokens_ * imbalance();
    // A row goes to all ranks that have slices of its expert.
    const auto slices = static_cast<double>(slices_);
    const auto met = [&](double groups) {
      return groups == W ? slices * holders(W / slices, s) : holders(groups, s);
    };
    const TrafficShape shape{.ranks = W,
                             .node = static_cast<double>(parallel_.node_ranks),
                             .top_k = slices * K,
                             .exact = parallel_.dispatch == DispatchMode::kExact,
                             .holders = met};
    const Traffic sends = traffic(parallel_.dispatcher, shape);
    c.saved += tokens_ * shape.back() * width;
    // Rows are laid out to be sent, and come back as one for each rank that a token met; in
    // backward again. Wires of 8 bits pack them as they are laid out, and unpack what came. Forward
    // alone waits for counts.
    const double unpacked =
        parallel_.wire == WireType::kNative ? 0 : sends.received * (sent + width);
    const double moved = std::min(W, K) * (width + sent) + 2 * shape.met() * width + unpacked;
    const double laid = tokens_ * moved / machine_.bandwidth;
    c.forward += laid + machine_.dispatch;
    c.backward += laid;
    for (const Message& m : sends.messages) {
      const bool counts = m.what == TrafficRows::kCounts;
      const double bytes = m.what == TrafficRows::kOut ? sent : width;  // of a row
      const double all = m.gathered ? tokens_ : tokens;
      const double whole = counts ? m.rows : m.rows * all * bytes;
      const GroupTopology& over = m.ranks == TrafficRanks::kAll      ? all_
                                  : m.ranks == TrafficRanks::kAcross ? across_
                                                                     : within_;
      c.exchange += m.gathered ? gather_seconds(machine_, over, whole)
                               : exchange_seconds(machine_, over, whole * m.leaves);
    }
    // What the host keeps room for in vain costs no memory where it is never written to.
    const double hidden = on_gpu_ ? static_cast<double>((s.gated ? 2 : 1) * s.hidden) * width_ : 0;
    c.saved += tokens_ * (sends.unused_rows * width + sends.unused_choices * hidden);
    rank.runtime = std::max(rank.runtime, tokens_ * sends.kept_rows * width);
  }

 private:
  double holders(double groups, const MoeSizes& s) const {
    const auto n = static_cast<int64_t>(groups);
    return forced_ == Force::kUniform && n <= s.experts
               ? forced_holders(n, s)
               : expected_holders(groups, static_cast<double>(s.top_k));
  }

  const ParallelConfig& parallel_;
  const Machine& machine_;
  bool on_gpu_;
  double width_, tokens_;
  int64_t expert_ranks_, slices_;
  double most_held_;  // of the average
  Force forced_;
  GroupTopology all_, across_, within_;
};

// Adds up what the units cost each rank of a pipeline.
class Costing {
 public:
  Costing(const CostedModel& model, const ParallelConfig& parallel, const ProcessMesh& mesh,
          const StepWork& work)
      : r_(model.recipe),
        parallel_(parallel),
        machine_(model.machine),
        alone_(mesh.world() == 1),
        many_(work.microbatches > 1),
        adds_up_(many_ && !sums_each(parallel)),
        width_(value_width(r_, model.memory.on_gpu)),
        sum_width_(sum_width(r_, parallel, width_)),
        tensor_(parallel.tensor),
        micro_batch_(model.micro_batch),
        tokens_(static_cast<double>(micro_batch_ * r_.data.sequence) /
                static_cast<double>(tensor_ * parallel.context)),
        dense_(shard_groups_of(mesh, tensor_, parallel.shard, machine_)),
        cut_(shard_groups_of(mesh, 1, parallel.shard, machine_)),
        experts_(expert_shard_groups(mesh, parallel, r_.model.moe.experts, machine_)),
        shares_tokens_(topology_of(mesh, GroupKind::kTensor, machine_)),
        shares_rows_(topology_of(mesh, GroupKind::kContext, machine_)),
        on_gpu_(model.memory.on_gpu),
        teacher_(model.memory.teacher),
        exchange_(model, parallel, mesh, tokens_) {
    const std::vector<int> ranks = chunk_ranks(work);
    // For each rank that reads the embedding's table, the first unit that does.
    std::map<int, size_t> readers = {{ranks[0], 0}};
    for (const auto& [first, unit] : work.tied) {
      readers.emplace(ranks[static_cast<size_t>(unit)], static_cast<size_t>(unit));
    }
    table_ranks_ = std::ssize(readers);
    const std::vector<int64_t> stages = mesh.ranks_of(GroupKind::kPipeline, 0);
    out_.resize(static_cast<size_t>(work.ranks), {.chunks = {}, .contention = machine_.contention});
    std::vector<std::vector<size_t>> own(out_.size());
    std::vector<double> passing(out_.size(), 0);
    std::vector<ChunkCosts> chunks;
    for (size_t u = 0; u < model.costs.units.size(); ++u) {
      const auto reader = readers.find(ranks[u]);
      const bool reads = readers.size() > 1 && reader != readers.end() && reader->second == u;
      const UnitMemory& memory = model.memory.units[u];
      const auto rank = static_cast<size_t>(ranks[u]);
      now_ = &out_[rank];
      ChunkCosts c = chunk(static_cast<int64_t>(u), model.costs.units[u], memory,
                           reads ? &model.memory.units[0] : nullptr);
      if (work.ranks > 1) {
        const int64_t states = states_after(r_.model, static_cast<int64_t>(u) - 1, true);
        c.border = tokens_ * static_cast<double>(states * r_.model.width) * width_;
        const auto before = static_cast<size_t>(ranks[u == 0 ? 0 : u - 1]);
        const bool far = hosts_of({std::min(stages[before], stages[rank]),
                                   std::max(stages[before], stages[rank])},
                                  machine_) > 1;
        const Link& link = far ? machine_.between : machine_.inside;
        c.send = link.latency + c.border / link.bandwidth;
      }
      chunks.push_back(c);
      own[rank].push_back(u);
      passing[rank] += memory.held();
    }
    for (size_t rank = 0; rank < out_.size(); ++rank) {
      out_[rank].update = std::max(out_[rank].update, out_[rank].copies);
      out_[rank].update_memory += staging_memory(alone_ ? out_[rank].host : largest_host_, window_);
      out_[rank].chunks = chunks;
      out_[rank].workspace = model.memory.workspace_of(own[rank]);
      out_[rank].runtime +=
          runtime_memory(model.memory.on_gpu, passing[rank] + out_[rank].workspace);
    }
  }
  std::vector<StepCosts> result() && { return std::move(out_); }  // of each rank of a pipeline

 private:
  bool is_head(int64_t unit) const { return unit > r_.model.layers + r_.model.mtp.depth; }
  bool is_mtp(int64_t unit) const { return unit > r_.model.layers && !is_head(unit); }

  // `table`: of the unit whose parameters this one shares with other ranks; null: it does not.
  ChunkCosts chunk(int64_t unit, const UnitCosts& costs, const UnitMemory& memory,
                   const UnitMemory* table) {
    ChunkCosts c{.saved = memory.saved - memory.offloaded, .input = memory.input};
    const double before = now_->update;
    add_compute(unit, costs, memory, c);
    const double share = exchange_.share();
    const auto of_readers = [this](ShardGroups shard_groups) {
      shard_groups.replicas.ranks *= table_ranks_;
      return shard_groups;
    };
    const auto add_dense = [&](const UnitMemory& m, const ShardGroups& whole,
                               const ShardGroups& cut) {
      add_state(m.dense, 1, whole, c);
      if (m.cut.elements + m.cut.frozen > 0) add_state(m.cut, 1, cut, c);
    };
    if (table != nullptr) add_dense(*table, of_readers(dense_), of_readers(cut_));
    if (&memory != table) add_dense(memory, dense_, cut_);
    if (is_head(unit)) c.state += teacher_.weights;
    StateBytes experts = memory.experts;  // counted whole
    experts.matrix /= static_cast<double>(experts_.parts.ranks);
    add_state(experts, share, experts_, c);
    c.update = now_->update - before;
    return c;
  }

  void add_compute(int64_t unit, const UnitCosts& u, const UnitMemory& memory, ChunkCosts& c) {
    const bool block = unit > 0 && !is_head(unit);
    const LayerConfig layer = block ? layer_config(r_.model, unit - 1) : LayerConfig{};
    double routed = 0;
    if (block && layer.moe) {
      const MoeSizes s = sizes_of(*layer.moe, moe_shape(r_.model, layer));
      routed = static_cast<double>(u.params.experts) * static_cast<double>(s.top_k) /
               static_cast<double>(s.experts);
      exchange_.add(s, c, *now_);
    }
    const auto sequence = static_cast<double>(r_.data.sequence);
    const double seen = sequence / 2;
    const double keys = u.window > 0 ? std::min(seen, static_cast<double>(u.window)) : seen;
    const double dense = static_cast<double>(u.product_params + u.mtp_product_params) - routed;
    const double products =
        2 * tokens_ *
        (dense / machine_.products + routed * exchange_.imbalance() / machine_.experts);
    const double pairs = static_cast<double>(u.core_dims) * keys;
    const double core =
        2 * tokens_ * (pairs + static_cast<double>(u.state_products)) / machine_.attention;
    const double moved = 2 * memory.saved / machine_.bandwidth;
    c.forward += products + core + moved + machine_.overhead;
    c.backward += 2 * products + 2.5 * core + 2 * moved + machine_.overhead;
    if (block) c.weight = products, c.late = memory.saved;  // put off: half of the products
    if (is_head(unit)) {
      c.forward += c.backward - machine_.overhead + tokens_ * teacher_.flops / machine_.products;
      c.backward = machine_.overhead;
    }
    add_tokens(unit, layer, c);
    if (block) add_keys(layer, core, c);
  }

  // Adds what context ranks exchange: keys once in forward, in backward again, and their gradients
  // back; heads once in each pass. Adds the products that make keys and values of other ranks'
  // latents. A ring sends the keys of a round during the attention, `core` s, over the last
  // round's.
  void add_keys(const LayerConfig& layer, double core, ChunkCosts& c) {
    const double numbers = numbers_exchanged(r_, micro_batch_, layer, tensor_);
    if (numbers == 0) return;
    const double once = exchange_seconds(machine_, shares_rows_, numbers * width_);
    const auto made = static_cast<double>(made_of_latents(r_.model, layer, tensor_));
    const double latent = r_.model.mla ? static_cast<double>(r_.model.mla->kv_rank) : 0;
    const double others = keys_from_others(r_, micro_batch_, layer);
    const double products = 2 * others * latent * made / machine_.products;
    const bool keys = parallel_.context_method != ContextMethod::kHeads;
    if (parallel_.context_method == ContextMethod::kRing) {
      const double slower = on_gpu_ ? kRingCore : 1;
      const auto ranks = static_cast<double>(parallel_.context);
      const double hides = slower * core * (ranks - 1) / ranks;
      c.forward += (slower - 1) * core + joins(layer);
      c.backward += 2.5 * (slower - 1) * core;
      c.tokens += std::max(0.0, once - hides);
      c.tokens_back += std::max(0.0, 2 * once - 2.5 * hides);
      return;
    }
    c.tokens += once;
    c.tokens_back += (keys ? 2 : 1) * once;
    c.forward += products;
    c.backward += 2 * products;
  }

  // Seconds to join a ring's partial results in f32: for each of the two runs of keys of each rank
  // the sum is read and written and the part read.
  double joins(const LayerConfig& layer) const {
    const double passes = 2 * static_cast<double>(parallel_.context);
    const auto columns = static_cast<double>(layer.heads * layer.head_dim);
    return passes * 3 * 4 * tokens_ * columns / machine_.bandwidth;
  }

  // Adds the transfers of tensor ranks. Forward gathers tokens before a product and scatters them
  // after it; backward gathers the gradient, and x once more, and scatters dx.
  void add_tokens(int64_t unit, const LayerConfig& layer, ChunkCosts& c) {
    if (tensor_ == 1) return;
    const ModelConfig& m = r_.model;
    const auto seconds = [&](int64_t width) {
      const double bytes = tokens_ * static_cast<double>(tensor_ * width) * width_;
      return gather_seconds(machine_, shares_tokens_, bytes);
    };
    const auto pair = [&](int64_t in) {
      c.tokens += seconds(in) + seconds(m.width);
      c.tokens_back += 2 * seconds(in) + seconds(m.width);
    };
    const bool block = unit > 0 && !is_head(unit);
    if (block && layer.attention) {
      pair(m.mla && m.mla->q_rank > 0 ? m.mla->q_rank + m.mla->kv_rank + m.mla->rope_dim : m.width);
    }
    const bool shared = parallel_.split_shared == CutKind::kOn;
    if (block && (!layer.moe || (shared && layer.moe->shared.experts > 0))) pair(m.width);
    if (parallel_.split_vocab != CutKind::kOn) return;
    if (unit == 0 || is_mtp(unit)) {
      c.tokens += seconds(m.width);
      c.tokens_back += seconds(m.width);
    }
    if (is_head(unit)) {
      c.tokens += 2 * static_cast<double>(1 + m.mtp.depth) * seconds(m.width);
    }
  }

  // `share` of the parameters are of this rank's kExpert or dense group, cut between its owners.
  void add_state(const StateBytes& all, double share, const ShardGroups& group, ChunkCosts& c) {
    const double S = static_cast<double>(group.owners.ranks);
    const double elements = all.elements * share, values = all.values * share;
    c.values += values;
    c.owned += values / S;
    c.state += (all.masters + all.moments) * share / S + all.frozen * share;
    const double host = all.host * share / S;
    now_->host += host;
    now_->copies += host / host_rate(machine_);
    largest_host_ = std::max(largest_host_, host);
    // Muon's buckets that ranks cut pass whole (train/optim/state_stream.h).
    const bool whole = direction_width(r_) > 0 && (group.owners.ranks > 1 || group.parts.ranks > 1);
    window_ = std::max(window_, whole ? host : all.window);
    const bool summed = group.owners.ranks * group.replicas.ranks > 1;
    const bool adds_up = summed ? adds_up_ : many_;
    const double own = all.gradients * share;
    const bool exact = r_.run.bits == Bits::kLayout;
    const double gradient = exact     ? kPairBytes * elements
                            : adds_up ? std::max(4 * elements, own)
                                      : own;
    c.made += all.gradients * share;
    c.gradient += gradient;
    const double moved = width_ >= 4                              ? 7 * width_
                         : r_.train.precision == Precision::kFp16 ? 34
                                                                  : 32;
    const double squared = summed || adds_up ? 4 : all.gradients / std::max(all.elements, 1.0);
    now_->update += elements / S * (moved + squared) / machine_.bandwidth;
    now_->update_memory = std::max(
        now_->update_memory, update_memory(all, share, group.owners.ranks, group.parts.ranks));
    // There and back, to whoever puts a matrix together.
    now_->update +=
        2 * exchange_seconds(machine_, group.parts, direction_width(r_) * all.matrices * share / S);
    // The first microbatch's gradients are widened, each further one's added.
    if (adds_up) c.backward += (all.gradients * share + 8 * elements) / machine_.bandwidth;
    if (alone_) return;
    if (!summed) {
      c.sum += gradient;
      return;
    }
    c.laying += (gradient + elements * sum_width_) / machine_.bandwidth;
    c.summing += elements * sum_width_;
    c.sum += (exact ? kPairBytes : std::max(4.0, width_)) * elements / S;
    now_->update +=
        gather_seconds(machine_, group.owners, direction_width(r_) * all.matrices * share);
    if (parallel_.shard != ShardKind::kNone) {
      c.gather += gather_seconds(machine_, group.owners, values);
    }
    c.reduce += machine_.summing * gather_seconds(machine_, group.owners, elements * sum_width_);
    c.replicate += 2 * gather_seconds(machine_, group.replicas, elements / S * sum_width_);
  }

  const Recipe& r_;
  const ParallelConfig& parallel_;
  const Machine& machine_;
  bool alone_;
  bool many_;     // microbatches of a rank
  bool adds_up_;  // their gradients, in f32, before ranks sum them
  double width_, sum_width_;
  int64_t tensor_, micro_batch_;
  double tokens_;  // of a rank
  ShardGroups dense_, cut_, experts_;
  GroupTopology shares_tokens_, shares_rows_;
  // In host memory: the most of a unit's state, and of an update's window.
  double largest_host_ = 0, window_ = 0;
  int64_t table_ranks_ = 1;  // of a pipeline, that read the embedding's table
  bool on_gpu_;
  TeacherCosts teacher_;
  ExchangeCosts exchange_;
  StepCosts* now_ = nullptr;  // of the rank whose chunk is costed
  std::vector<StepCosts> out_;
};

void add_microbatches(RankTimeline& out, const RankTimeline& before, double more) {
  for (double RankTimeline::*part :
       {&RankTimeline::seconds, &RankTimeline::compute, &RankTimeline::exchange,
        &RankTimeline::tokens, &RankTimeline::exposed, &RankTimeline::bubble,
        &RankTimeline::collectives}) {
    out.*part += more * (out.*part - before.*part);
  }
}

// The pipeline rank that waits least until the slowest is done, with the peak memory of the rank
// that needs most.
RankTimeline busiest(const std::vector<RankTimeline>& ranks) {
  RankTimeline out = *std::ranges::max_element(
      ranks, {}, [](const RankTimeline& rank) { return rank.seconds - rank.bubble; });
  const double slowest = step_seconds(ranks);
  out.bubble += slowest - out.seconds;
  out.seconds = slowest;
  for (const RankTimeline& rank : ranks) {
    if (rank.peak.total() > out.peak.total()) out.peak = rank.peak;
  }
  return out;
}

// Seconds in which a rank waits for others, of F and B of a microbatch on it.
double idle_seconds(const StepWork& work, double forward, double backward, double weight) {
  const auto others = static_cast<double>(work.ranks - 1);
  const auto each = static_cast<double>(std::max<size_t>(work.stage_ranks.size(), 1)) /
                    static_cast<double>(work.ranks);
  if (is_in_a_vee(work.order)) return others * forward / 2;
  const double whole = others * (forward + backward) / each;
  return work.order == PipelineOrder::kZb1p ? std::max(0.0, whole - 2 * others * weight) : whole;
}

}  // namespace

Forecaster::Forecaster(Recipe recipe, int64_t world, const Machine& machine, bool on_gpu,
                       int64_t most, const Forecaster* like)
    : r_(std::move(recipe)),
      world_(world),
      machine_(machine),
      most_(most),
      work_(step_work(r_, r_.parallel)) {
  const RunPlan plan = plan_of(r_);
  micro_batch_ = plan.micro_batch;
  if (like != nullptr) {
    counted_ = like->counted_;
  } else {
    const auto model = build_model(r_.model, part_of_model(r_.parallel));
    counted_ = std::make_shared<Counted>(
        Counted{model_memory(r_, plan, on_gpu, *model), troupe::costs_of(r_.model)});
  }
  work_.replicas = static_cast<int>(world) / work_.ranks;
  work_.microbatches = static_cast<int>(
      share_of(plan.batch / plan.micro_batch, 0, replicas_of(r_.parallel, world)).steps);
  if (work_.ranks > 1) {
    StepWork full = work_;  // with more microbatches no stage holds more graphs, except for gpipe
    const int stages = static_cast<int>(work_.stage_ranks.size());
    full.microbatches = std::min(work_.microbatches, 2 * stages);
    graphs_ = graphs_held(full);
  }
  tokens_ = static_cast<double>(plan.batch * r_.data.sequence);
  flops_ = counted_->costs.flops_per_token(r_.data.sequence) * tokens_;
}

std::vector<StepCosts> Forecaster::costs_of_ranks(const ParallelConfig& parallel,
                                                  const StepWork& work) const {
  return Costing({r_, micro_batch_, machine_, counted_->memory, counted_->costs}, parallel,
                 ProcessMesh(world_, shape_of(parallel)), work)
      .result();
}

LayoutForecast Forecaster::operator()(const ParallelConfig& parallel) const {
  // In a pipeline the steady period is behind its filling, and of a group of microbatches.
  const auto stages = static_cast<int64_t>(work_.stage_ranks.size());
  const int64_t period = stages > work_.ranks ? work_.ranks : 1;
  const int64_t most = work_.ranks > 1 ? std::max(most_, 2 * stages + 2 * period) : most_;
  const int64_t left = work_.microbatches - most;
  if (left <= 0) return costed(parallel, work_.microbatches);
  LayoutForecast out = costed(parallel, most), before = costed(parallel, most - period);
  const double more = static_cast<double>(left) / static_cast<double>(period);
  if (out.stages.empty()) add_microbatches(out.rank, before.rank, more);
  for (size_t i = 0; i < out.stages.size(); ++i) {
    add_microbatches(out.stages[i], before.stages[i], more);
  }
  if (!out.stages.empty()) out.rank = busiest(out.stages);
  out.work = work_;
  add_rates(out);
  return out;
}

LayoutForecast Forecaster::costed(const ParallelConfig& parallel, int64_t microbatches) const {
  LayoutForecast out{.world = world_, .micro_batch = micro_batch_, .parallel = parallel};
  out.work = work_;
  out.work.microbatches = static_cast<int>(microbatches);
  out.schedule = step_schedule(parallel, out.work);
  const std::vector<StepCosts> costs = costs_of_ranks(parallel, out.work);
  for (const StepCosts& rank : costs) {
    out.host = std::max(out.host, rank.host);
    out.copies = std::max(out.copies, rank.copies);
  }
  std::vector<RankTimeline> ranks = timeline_of(out.schedule, out.work, costs);
  out.rank = busiest(ranks);
  for (RankTimeline& rank : ranks) rank.slots.clear();
  if (ranks.size() > 1) out.stages = std::move(ranks);
  add_rates(out);
  return out;
}

void Forecaster::add_rates(LayoutForecast& out) const {
  const double late = machine_.jitter * std::sqrt(2 * std::log(static_cast<double>(world_)));
  out.step_seconds = out.rank.seconds * (1 + late);
  out.tokens_per_second = tokens_ / out.step_seconds;
  const double known = peak_flops(machine_.name).value_or(0);  // of a file without the key
  const double peak = machine_.peak > 0 ? machine_.peak : known;
  if (peak > 0) out.mfu = flops_ / out.step_seconds / (peak * static_cast<double>(world_));
}

QuickForecast Forecaster::quick(const ParallelConfig& parallel) const {
  const std::vector<StepCosts> costs = costs_of_ranks(parallel, work_);
  const std::vector<int> ranks = chunk_ranks(work_);
  const bool full = parallel.shard == ShardKind::kFull, pipeline = work_.ranks > 1;
  const bool each = full && parallel.reshard;  // gathered twice for each microbatch
  const auto M = static_cast<double>(work_.microbatches);
  QuickForecast out;
  const bool early = work_.updates_in_backward && work_.microbatches == 1;
  for (int rank = 0; rank < work_.ranks; ++rank) {
    const StepCosts& own = costs[static_cast<size_t>(rank)];
    double forward = 0, backward = 0, weight = 0, gather = 0, reduce = 0, replicate = 0;
    double memory = 0, widest = 0, gradients = 0;
    for (size_t u = 0; u < own.chunks.size(); ++u) {
      if (ranks[u] != rank) continue;
      const ChunkCosts& c = own.chunks[u];
      const bool again = counted_->memory.units[u].again;
      const double once = c.forward + c.exchange + c.tokens;
      forward += once;
      backward += c.backward + c.exchange + c.tokens_back + (again ? once : 0);
      weight += c.weight;
      gather += c.gather;
      reduce += c.reduce;
      replicate += c.replicate;
      const auto stage = static_cast<size_t>(pipeline ? work_.stages[u] : 0);
      const double graphs = pipeline ? std::min<double>(graphs_[stage], M) : 1;
      memory += c.state + (each ? c.owned : c.values) + graphs * (again ? c.input : c.saved);
      const double gradient = std::max(c.gradient, c.sum);  // early ones: of two units
      gradients = early ? std::max(gradients, 2 * gradient) : gradients + gradient;
      widest = std::max(widest, c.values);
    }
    memory += gradients;
    if (each) memory += 2 * widest;
    const double computed = M * (forward + backward);
    const double sums = sums_each(parallel) ? M : 1;
    const double sent = (each ? 2 * M : 1) * gather + sums * reduce + replicate;
    const double beside = full ? computed : backward;
    const double seconds = computed + idle_seconds(work_, forward, backward, weight) +
                           std::max(0.0, sent - beside) + own.update;
    out.seconds = std::max(out.seconds, seconds);
    out.memory = std::max(out.memory, memory + own.workspace + own.runtime);
  }
  return out;
}

LayoutForecast forecast_layout(const Recipe& r, int64_t world, const Machine& machine,
                               bool on_gpu) {
  Recipe laid = r;
  laid.parallel = settled(r.parallel, needs_of(r, world, machine.ranks_per_host));
  const ParallelConfig parallel = laid.parallel;
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  return Forecaster(std::move(laid), world, machine, on_gpu, kAll)(parallel);
}

namespace {

// Its bytes are those of every machine.
LayoutForecast on_any_machine(const Recipe& r, int64_t world, bool on_gpu) {
  const Link any{.bandwidth = 1};
  const Machine machine{.products = 1,
                        .experts = 1,
                        .attention = 1,
                        .bandwidth = 1,
                        .ranks_per_host = world,
                        .inside = any,
                        .between = any};
  return forecast_layout(r, world, machine, on_gpu);
}

}  // namespace

double layout_host_state(const Recipe& r, int64_t world, bool on_gpu) {
  return on_any_machine(r, world, on_gpu).host;
}

StepMemory layout_memory(const Recipe& r, int64_t world, bool on_gpu,
                         std::optional<int> stage_rank) {
  const LayoutForecast forecast = on_any_machine(r, world, on_gpu);
  const bool of_all = !stage_rank || forecast.stages.empty();
  return of_all ? forecast.rank.peak : forecast.stages.at(static_cast<size_t>(*stage_rank)).peak;
}

Recipe with_batch_of(const Recipe& recipe, int64_t world) {
  Recipe out = recipe;
  const RunPlan plan = plan_of(recipe);
  out.train.micro_batch = plan.micro_batch;
  out.train.global_batch = plan.batch * world;
  out.train.global_batch_tokens = {};
  return out;
}

ProcessMesh mesh_of(const LayoutForecast& forecast) {
  return {forecast.world, shape_of(forecast.parallel)};
}

Machine calibrated(const Recipe& r, const Machine& machine, bool on_gpu, double seconds) {
  Recipe one = r;
  one.parallel = {};
  const double one_rank_seconds = forecast_layout(one, 1, machine, on_gpu).rank.seconds;
  const double faster = one_rank_seconds / seconds;
  Machine out = machine;
  for (double* rate : {&out.products, &out.experts, &out.attention, &out.bandwidth})
    *rate *= faster;
  out.overhead /= faster;
  return out;
}

}  // namespace troupe
