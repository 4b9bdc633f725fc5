#include "troupe/train/forecast/layout_forecast.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/wire.h"
#include "troupe/nn/models/costs.h"
#include "troupe/nn/models/model.h"
#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/mfu.h"
#include "troupe/train/forecast/model_memory.h"
#include "troupe/train/forecast/step_work.h"

namespace troupe {
namespace {

// The sharing ranks of one kind of parameters.
struct Team {
  Spread owners, replicas;
};

int64_t hosts_of(const std::vector<int64_t>& ranks, const Machine& machine) {
  std::set<int64_t> hosts;
  for (const int64_t rank : ranks) hosts.insert(rank / machine.ranks_per_host);
  return static_cast<int64_t>(hosts.size());
}

Spread spread_of(const Mesh& mesh, GroupKind kind, const Machine& machine) {
  const std::vector<int64_t> ranks = mesh.ranks_of(kind, 0);
  return {static_cast<int64_t>(ranks.size()), hosts_of(ranks, machine)};
}

// Of the group that lies on most hosts: groups of 3 on hosts of 8 do not all stay inside one.
Spread expert_spread(const Mesh& mesh, const Machine& machine) {
  Spread out = spread_of(mesh, GroupKind::kExpert, machine);
  const int64_t host = machine.ranks_per_host;
  if (host % out.ranks == 0 || out.ranks % host == 0) return out;
  for (const std::vector<int64_t>& ranks : mesh.all(GroupKind::kExpert)) {
    out.hosts = std::max(out.hosts, hosts_of(ranks, machine));
  }
  return out;
}

// Of `groups` that share the experts out, in how many the choices of a token lie on average where
// token t chooses the experts t K to t K + K - 1 mod E (Force::kUniform).
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

// Costs of units, put together.
class Costing {
 public:
  Costing(const Recipe& recipe, const ParallelConfig& parallel, const Mesh& mesh,
          const Machine& machine, int microbatches, const ModelMemory& memory)
      : r_(recipe),
        parallel_(parallel),
        machine_(machine),
        alone_(mesh.world() == 1),
        many_(microbatches > 1),
        adds_up_(many_ && parallel.shard != ShardKind::kFull),
        width_(value_width(recipe, memory.on_gpu)),
        sum_width_(parallel.sum == SumType::kFp32 ? 4 : 2),
        tokens_(static_cast<double>(plan_of(recipe).micro_batch * recipe.data.sequence)),
        expert_ranks_(mesh.shape().expert),
        most_held_(most_held(parallel, recipe.model.moe.experts)),
        dense_{spread_of(mesh, GroupKind::kShard, machine),
               spread_of(mesh, GroupKind::kReplicate, machine)},
        experts_{spread_of(mesh, GroupKind::kExpertShard, machine),
                 spread_of(mesh, GroupKind::kExpertReplicate, machine)},
        on_gpu_(memory.on_gpu),
        forced_(std::visit([](const auto& c) { return c.gate.force; }, recipe.model.moe.router)),
        exchange_(expert_spread(mesh, machine)) {
    if (parallel.dispatcher == DispatcherKind::kTwoLevel) {
      const int64_t nodes = exchange_.ranks / parallel.node_ranks;
      across_ = {.ranks = nodes, .hosts = std::min(nodes, exchange_.hosts)};
      within_ = {.ranks = parallel.node_ranks,
                 .hosts = std::max<int64_t>(1, exchange_.hosts / nodes)};
    }
    const ModelCosts costs = costs_of(recipe.model);
    double passing = memory.workspace;
    for (size_t u = 0; u < costs.units.size(); ++u) {
      out_.chunks.push_back(chunk(static_cast<int64_t>(u), costs.units[u], memory.units[u]));
      passing += memory.units[u].again ? memory.units[u].input : memory.units[u].saved;
    }
    out_.contention = machine.contention;
    out_.workspace = memory.workspace;
    out_.runtime = runtime_memory(memory.on_gpu, passing);
  }
  StepCosts result() && { return std::move(out_); }

 private:
  bool is_head(int64_t unit) const { return unit == r_.model.layers + 1; }

  ChunkCosts chunk(int64_t unit, const UnitCosts& costs, const UnitMemory& memory) {
    ChunkCosts c{.saved = memory.saved, .input = memory.input};
    add_compute(unit, costs, memory, c);
    const double share = most_held_ / static_cast<double>(expert_ranks_);
    add_state(memory.dense, 1, dense_, c);
    add_state(memory.experts, share, experts_, c);
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
      add_exchange(s, c);
    }
    const auto sequence = static_cast<double>(r_.data.sequence);
    const double seen = sequence / 2;
    const double keys = u.window > 0 ? std::min(seen, static_cast<double>(u.window)) : seen;
    const double dense = static_cast<double>(u.product_params) - routed;
    const double products =
        2 * tokens_ * (dense / machine_.products + routed * imbalance() / machine_.experts);
    const double core = 2 * tokens_ * static_cast<double>(u.core_dims) * keys / machine_.attention;
    const double moved = 2 * memory.saved / machine_.bandwidth;
    c.forward += products + core + moved + machine_.overhead;
    c.backward += 2 * products + 2.5 * core + 2 * moved + machine_.overhead;
    if (is_head(unit)) {
      c.forward += c.backward - machine_.overhead;
      c.backward = machine_.overhead;
    }
  }

  double imbalance() const { return expert_ranks_ > 1 ? machine_.imbalance * most_held_ : 1; }

  double holders(double groups, const MoeSizes& s) const {
    const auto n = static_cast<int64_t>(groups);
    return forced_ == Force::kUniform && n <= s.experts
               ? forced_holders(n, s)
               : expected_holders(groups, static_cast<double>(s.top_k));
  }

  // Rows there and back, and first the numbers of rows.
  void add_exchange(const MoeSizes& s, ChunkCosts& c) {
    if (expert_ranks_ == 1) return;
    const auto K = static_cast<double>(s.top_k), W = static_cast<double>(expert_ranks_);
    const int64_t D = s.latent > 0 ? s.latent : s.width;
    const double width = static_cast<double>(D) * width_;  // bytes of a row, as it comes back
    const auto sent = static_cast<double>(
        wire_row_bytes(parallel_.wire, D, static_cast<int64_t>(width_)));  // and as it goes out
    const double tokens = tokens_ * imbalance();
    const bool exact = parallel_.dispatch == DispatchMode::kExact;
    const double met = holders(W, s), back = exact ? K : met;
    c.saved += tokens_ * back * width;
    // Rows are laid out to be sent, and come back as one for each rank that a token met; in
    // backward again. int8 packs them as they are laid out, and unpacks what came. Forward alone
    // waits for counts.
    const double came = parallel_.dispatcher == DispatcherKind::kAllGather ? W : met;
    const double unpacked = parallel_.wire == WireType::kInt8 ? came * (sent + width) : 0;
    const double moved = std::min(W, K) * (width + sent) + 2 * met * width + unpacked;
    const double laid = tokens_ * moved / machine_.bandwidth;
    c.forward += laid + machine_.dispatch;
    c.backward += laid;
    if (parallel_.dispatcher == DispatcherKind::kTwoLevel) {
      const auto R = static_cast<double>(parallel_.node_ranks);
      const double nodes = holders(W / R, s), nodes_back = exact ? K : nodes;
      const auto both = [&](double across, double within, double bytes) {
        return exchange_seconds(machine_, across_, across * tokens * bytes * (1 - R / W)) +
               exchange_seconds(machine_, within_, within * tokens * bytes * (1 - 1 / R));
      };
      c.exchange = both(nodes, met, sent) + both(nodes_back, back, width) + both(0, 0, 0);
      return;
    }
    const auto direct = [&](double rows, double bytes) {
      return exchange_seconds(machine_, exchange_, rows * tokens * bytes * (1 - 1 / W));
    };
    if (parallel_.dispatcher == DispatcherKind::kAllGather) {
      c.exchange = gather_seconds(machine_, exchange_, W * tokens_ * sent) +
                   direct(exact ? W * K : W, width) + gather_seconds(machine_, exchange_, W);
      // No host counts its rows: there is room for all choices of all ranks, which the host's own
      // memory has where it is written to alone.
      const double hidden =
          on_gpu_ ? static_cast<double>((s.gated ? 2 : 1) * s.hidden) * width_ : 0;
      c.saved += tokens_ * ((W - met) * width + (W - 1) * K * hidden);
      return;
    }
    c.exchange = direct(met, sent) + direct(back, width) + direct(0, 0);
  }

  // `share` of the parameters are of this rank's kExpert or dense group, cut between its owners.
  void add_state(const StateBytes& all, double share, const Team& group, ChunkCosts& c) {
    const double S = static_cast<double>(group.owners.ranks);
    const double elements = all.elements * share, values = all.values * share;
    c.values += values;
    c.owned += values / S;
    c.state += (all.masters + all.moments) * share / S + all.frozen * share;
    const bool summed = group.owners.ranks * group.replicas.ranks > 1;
    const bool adds_up = summed ? adds_up_ : many_;
    const double gradient = adds_up ? 4 * elements : all.gradients * share;
    c.made += all.gradients * share;
    c.gradient += gradient;
    const double moved = width_ == 4 ? 28 : r_.train.precision == Precision::kFp16 ? 34 : 32;
    const double squared = summed || adds_up ? 4 : all.gradients / std::max(all.elements, 1.0);
    out_.update += elements / S * (moved + squared) / machine_.bandwidth;
    out_.update_memory =
        std::max(out_.update_memory, update_memory(all, share, group.owners.ranks));
    // The first microbatch's gradients are widened, each further one's added.
    if (adds_up) c.backward += (all.gradients * share + 8 * elements) / machine_.bandwidth;
    if (alone_) return;
    if (!summed) {
      c.sum += gradient;
      return;
    }
    c.laying += (gradient + elements * sum_width_) / machine_.bandwidth;
    c.summing += elements * sum_width_;
    c.sum += 4 * elements / S;
    out_.update +=
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
  double width_, sum_width_, tokens_;
  int64_t expert_ranks_;
  double most_held_;  // of the average
  Team dense_, experts_;
  bool on_gpu_;
  Force forced_;
  Spread exchange_, across_, within_;
  StepCosts out_;
};

// The ways of sharing state that the recipe leaves open.
std::vector<ShardKind> kinds_of(const ParallelConfig& given, const LayoutNeeds& needs) {
  if (given.shard != ShardKind::kAuto) return {given.shard};
  if (needs.whole_state) return {ShardKind::kNone};
  if (given.shard_ranks > 0) return {ShardKind::kZero1, ShardKind::kFull};
  return {ShardKind::kNone, ShardKind::kZero1, ShardKind::kFull};
}

// What the recipe leaves open, in all ways that can be.
std::vector<ParallelConfig> choices_of(const ParallelConfig& given, const LayoutNeeds& needs) {
  std::vector<ParallelConfig> out;
  const auto add = [&](int64_t expert, ShardKind kind, int64_t block) {
    ParallelConfig c = given;
    c.expert = expert;
    c.shard = kind;
    c.shard_ranks = block;
    if (layout_faults(c, needs).empty()) out.push_back(resolved(c, needs));
  };
  for (int64_t expert = 1; expert <= needs.world; ++expert) {
    if (needs.world % expert != 0 || (given.expert != 0 && expert != given.expert)) continue;
    for (const ShardKind kind : kinds_of(given, needs)) {
      add(expert, kind, given.shard_ranks);
      const bool open = given.shard == ShardKind::kAuto && given.shard_ranks == 0;
      const bool hosts = 1 < needs.per_host && needs.per_host < needs.world;
      if (open && hosts && kind != ShardKind::kNone) add(expert, kind, needs.per_host);
    }
  }
  return out;
}

// What is the same in all layouts of a recipe on so many ranks.
class Forecaster {
 public:
  // The recipe and the machine stay; of more than `most` microbatches on a rank the others are
  // taken to be as the last of them.
  Forecaster(const Recipe& recipe, int64_t world, const Machine& machine, bool on_gpu, int64_t most)
      : r_(recipe),
        world_(world),
        machine_(machine),
        most_(most),
        model_(build_model(recipe.model)),
        memory_(model_memory(recipe, on_gpu, *model_)),
        work_(step_work(*model_, recipe)) {
    const RunPlan plan = plan_of(recipe);
    work_.replicas = static_cast<int>(world);
    work_.microbatches = static_cast<int>(share_of(plan.batch / plan.micro_batch, 0, world).steps);
    tokens_ = static_cast<double>(plan.batch * recipe.data.sequence);
    flops_ = costs_of(recipe.model).flops_per_token(recipe.data.sequence) * tokens_;
    micro_batch_ = plan.micro_batch;
  }

  // `parallel` is resolved.
  LayoutForecast operator()(const ParallelConfig& parallel) const {
    const int64_t left = work_.microbatches - most_;
    if (left <= 0) return costed(parallel, work_.microbatches);
    LayoutForecast out = costed(parallel, most_), before = costed(parallel, most_ - 1);
    add_microbatches(out.rank, before.rank, static_cast<double>(left));
    out.work = work_;
    tell_rates(out);
    return out;
  }

 private:
  LayoutForecast costed(const ParallelConfig& parallel, int64_t microbatches) const {
    LayoutForecast out{.world = world_, .micro_batch = micro_batch_, .parallel = parallel};
    out.work = work_;
    out.work.microbatches = static_cast<int>(microbatches);
    out.schedule = step_schedule(parallel, out.work);
    const StepCosts costs =
        Costing(r_, out.parallel, mesh_of(out), machine_, out.work.microbatches, memory_).result();
    std::vector<RankTimeline> ranks = timeline_of(out.schedule, out.work, costs);
    out.rank = *std::ranges::max_element(ranks, {}, &RankTimeline::seconds);
    tell_rates(out);
    return out;
  }

  void tell_rates(LayoutForecast& out) const {
    const double late = machine_.jitter * std::sqrt(2 * std::log(static_cast<double>(world_)));
    out.step_seconds = out.rank.seconds * (1 + late);
    out.tokens_per_second = tokens_ / out.step_seconds;
    const double known = peak_flops(machine_.name).value_or(0);  // of a file without the key
    const double peak = machine_.peak > 0 ? machine_.peak : known;
    if (peak > 0) out.mfu = flops_ / out.step_seconds / (peak * static_cast<double>(world_));
  }

  static void add_microbatches(RankTimeline& out, const RankTimeline& before, double more) {
    for (double RankTimeline::*part :
         {&RankTimeline::seconds, &RankTimeline::compute, &RankTimeline::exchange,
          &RankTimeline::exposed, &RankTimeline::bubble, &RankTimeline::collectives}) {
      out.*part += more * (out.*part - before.*part);
    }
  }

  const Recipe& r_;
  int64_t world_;
  const Machine& machine_;
  int64_t most_;
  std::unique_ptr<Model> model_;
  ModelMemory memory_;
  StepWork work_;
  double tokens_ = 0, flops_ = 0;
  int64_t micro_batch_ = 1;
};

}  // namespace

LayoutForecast forecast_layout(const Recipe& r, int64_t world, const Machine& machine,
                               bool on_gpu) {
  const ParallelConfig parallel = settled(r.parallel, needs_of(r, world, machine.ranks_per_host));
  return Forecaster(r, world, machine, on_gpu, std::numeric_limits<int64_t>::max())(parallel);
}

StepMemory layout_memory(const Recipe& r, int64_t world, bool on_gpu) {
  const Link any{.bandwidth = 1};
  const Machine machine{.products = 1,
                        .experts = 1,
                        .attention = 1,
                        .bandwidth = 1,
                        .ranks_per_host = world,
                        .inside = any,
                        .between = any};
  return forecast_layout(r, world, machine, on_gpu).rank.peak;
}

std::vector<LayoutForecast> layouts_that_fit(const Recipe& recipe, int64_t world,
                                             const Machine& machine, bool on_gpu, double memory) {
  const LayoutNeeds needs = needs_of(recipe, world, machine.ranks_per_host);
  const std::vector<ParallelConfig> choices = choices_of(recipe.parallel, needs);
  std::vector<LayoutForecast> out;
  for (const int64_t sequences : open_micro_batches(recipe, world, on_gpu)) {
    Recipe r = recipe;
    r.train.micro_batch = sequences;
    const Forecaster forecast(r, world, machine, on_gpu, kCostedMicrobatches);
    for (const ParallelConfig& parallel : choices) {
      LayoutForecast f = forecast(parallel);
      if (f.rank.peak.total() > memory) continue;
      f.schedule.clear();
      f.rank.slots.clear();
      out.push_back(std::move(f));
    }
  }
  std::ranges::stable_sort(out, {}, [](const LayoutForecast& f) {
    return std::pair(f.step_seconds, f.rank.peak.total());
  });
  return out;
}

Recipe with_batch_of(const Recipe& recipe, int64_t world) {
  Recipe out = recipe;
  const RunPlan plan = plan_of(recipe);
  out.train.micro_batch = plan.micro_batch;
  out.train.global_batch = plan.batch * world;
  out.train.global_batch_tokens = {};
  return out;
}

Mesh mesh_of(const LayoutForecast& forecast) {
  return {forecast.world, shape_of(forecast.parallel)};
}

Machine calibrated(const Recipe& r, const Machine& machine, bool on_gpu, double seconds) {
  Recipe one = r;
  one.parallel = {};
  const double told = forecast_layout(one, 1, machine, on_gpu).rank.seconds;
  const double faster = told / seconds;
  Machine out = machine;
  for (double* rate : {&out.products, &out.experts, &out.attention, &out.bandwidth})
    *rate *= faster;
  out.overhead /= faster;
  return out;
}

}  // namespace troupe
