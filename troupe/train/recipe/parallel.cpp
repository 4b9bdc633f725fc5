#include "troupe/train/recipe/parallel.h"

#include <algorithm>
#include <numeric>

#include "troupe/distributed/mesh/mesh.h"

namespace troupe {

MeshShape shape_of(const ParallelConfig& c) {
  return {.tensor = c.tensor,
          .context = c.context,
          .pipeline = c.pipeline,
          .expert = c.expert,
          .shard = c.shard == ShardKind::kNone ? 1 : c.shard_ranks};
}

namespace {

// On the ranks that share them.
bool differ_by_one(const ParallelConfig& c, int64_t experts) {
  return c.placement == ExpertSplit::kUneven && experts > c.expert && experts % c.expert != 0;
}

int64_t node_of(const ParallelConfig& c, const LayoutNeeds& needs) {
  if (c.node_ranks > 0) return c.node_ranks;
  return needs.per_host > 0 ? needs.per_host : needs.world;
}

}  // namespace

ParallelConfig resolved(const ParallelConfig& config, const LayoutNeeds& needs) {
  ParallelConfig out = config;
  if (out.shard == ShardKind::kAuto) {
    out.shard = needs.whole_state ? ShardKind::kNone : ShardKind::kZero1;
  }
  // As many ranks as share the experts evenly: the fewest bytes of weights, and of gradients sent.
  if (out.expert == 0) out.expert = needs.experts > 0 ? std::gcd(needs.world, needs.experts) : 1;
  const int64_t node = node_of(out, needs);
  if (out.dispatcher == DispatcherKind::kAuto) {
    const bool fills = out.expert > node && out.expert % node == 0;
    out.dispatcher = fills ? DispatcherKind::kTwoLevel : DispatcherKind::kAllToAll;
  }
  const bool nodes = out.dispatcher == DispatcherKind::kTwoLevel;
  out.node_ranks = nodes ? std::min(node, out.expert) : 0;
  return out;
}

std::string why_dispatcher(const ParallelConfig& c, const LayoutNeeds& needs) {
  if (c.expert <= 1) return "";
  const std::string ranks = std::to_string(c.expert);
  std::string out = "rows go " + to_text(c.dispatcher);
  out += c.wire == WireType::kNative ? ": " : " in " + to_text(c.wire) + ": ";
  if (c.dispatcher == DispatcherKind::kTwoLevel) {
    return out + ranks + " ranks share experts, over " + std::to_string(c.expert / c.node_ranks) +
           " nodes of " + std::to_string(c.node_ranks);
  }
  const int64_t node = node_of(c, needs);
  if (c.dispatcher == DispatcherKind::kAllGather) return out + "as the recipe says";
  if (c.expert > node && c.expert % node == 0) return out + "as the recipe says";
  if (node % c.expert == 0)
    return out + "the " + ranks + " ranks that share experts are on one host";
  return out + "the " + ranks + " ranks that share experts do not fill nodes of " +
         std::to_string(node);
}

std::vector<std::string> without_effect(const ParallelConfig& given, const ParallelConfig& resolved,
                                        int64_t experts) {
  constexpr const char* kHere = "no rows go to other ranks: each has all experts (expert: 1)";
  constexpr const char* kWhole = "weights are whole on each rank: it is of shard: full";
  const ParallelConfig none;
  const bool rows = resolved.expert > 1, full = resolved.shard == ShardKind::kFull;
  const struct {
    bool idle;
    const char *key, *why;
  } keys[] = {
      {given.placement != none.placement && !differ_by_one(resolved, experts), "placement",
       rows ? "the ranks share the experts evenly" : kHere},
      {!rows && given.rebalance.every > 0, "rebalance", kHere},
      {!rows && given.dispatch != none.dispatch, "dispatch", kHere},
      {!rows && given.dispatcher != none.dispatcher, "dispatcher", kHere},
      {!rows && given.wire != none.wire, "wire", kHere},
      {rows && given.node_ranks > 0 && resolved.dispatcher != DispatcherKind::kTwoLevel,
       "node_ranks", "rows go directly: it is of dispatcher: two_level"},
      {!full && given.prefetch != none.prefetch, "prefetch", kWhole},
      {!full && given.reshard != none.reshard, "reshard", kWhole},
  };
  std::vector<std::string> out;
  for (const auto& [idle, key, why] : keys) {
    if (idle)
      out.push_back("parallel." + std::string(key) + " does nothing in this layout: " + why);
  }
  return out;
}

double most_held(const ParallelConfig& c, int64_t experts) {
  if (!differ_by_one(c, experts)) return 1;
  const int64_t most = (experts + c.expert - 1) / c.expert;
  return static_cast<double>(most * c.expert) / static_cast<double>(experts);
}

std::vector<std::pair<std::string, std::string>> unbuilt_axes(const ParallelConfig& config) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [name, ranks] :
       {std::pair{"tensor", config.tensor}, std::pair{"pipeline", config.pipeline},
        std::pair{"context", config.context}}) {
    if (ranks == 1) continue;
    out.emplace_back("parallel." + std::string(name),
                     std::to_string(ranks) + ": this version runs one rank along this axis");
  }
  return out;
}

std::vector<std::string> layout_faults(const ParallelConfig& config, const LayoutNeeds& needs) {
  std::vector<std::string> out;
  for (const auto& [field, why] : unbuilt_axes(config)) out.push_back(field + ": E2005 " + why);
  const ParallelConfig c = resolved(config, needs);
  if (out.empty()) out = Mesh::faults(needs.world, shape_of(c));
  if (config.data != 0 && config.data != needs.world) {
    out.push_back("parallel.data: E2005 " + std::to_string(config.data) + " replicas on " +
                  std::to_string(needs.world) + " ranks; leave it out, or start that many");
  }
  const int64_t low = std::min(c.expert, needs.experts), high = std::max(c.expert, needs.experts);
  const int64_t slices = c.expert / std::max<int64_t>(1, needs.experts);
  const auto at_most_whole = [&](int64_t ranks) {
    return ranks <= needs.experts && needs.experts % ranks == 0;
  };
  if (c.expert > 1 && (low == 0 || high % low != 0) && !differ_by_one(c, needs.experts)) {
    const bool may_differ = needs.experts > c.expert && needs.world % c.expert == 0;
    const auto fits = [&](int64_t ranks) {
      return needs.experts > 0 && (needs.experts % ranks == 0 || ranks % needs.experts == 0);
    };
    out.push_back("parallel.expert: E2005 " + std::to_string(needs.experts) + " experts on " +
                  std::to_string(c.expert) + " ranks: neither divides the other; use " +
                  (needs.experts > 0 ? near_divisors(needs.world, c.expert, fits) : "1") +
                  (may_differ ? ", or parallel.placement: uneven" : ""));
  } else if (needs.whole_experts && slices > 1) {
    out.push_back("parallel.expert: E2005 " + std::to_string(c.expert) +
                  " ranks would cut the hidden width of " + std::to_string(needs.experts) +
                  " experts, which those with a bias or lora do not take; use " +
                  near_divisors(needs.world, c.expert, at_most_whole));
  } else if (slices > 1 && needs.hidden % slices != 0) {
    const auto cuts = [&](int64_t ranks) {
      return at_most_whole(ranks) ||
             (ranks % needs.experts == 0 && needs.hidden % (ranks / needs.experts) == 0);
    };
    out.push_back("parallel.expert: E2005 an expert's width " + std::to_string(needs.hidden) +
                  " does not divide into the " + std::to_string(slices) + " slices of " +
                  std::to_string(c.expert) + " ranks and " + std::to_string(needs.experts) +
                  " experts; use " + near_divisors(needs.world, c.expert, cuts));
  } else if (needs.whole_matrices && c.expert > needs.experts && c.expert > 1) {
    out.push_back("parallel.expert: E2005 " + std::to_string(c.expert) +
                  " ranks cut the matrices of " + std::to_string(needs.experts) +
                  " experts, which the optimizer needs whole: at most " +
                  std::to_string(needs.experts));
  }
  const bool two_level = c.dispatcher == DispatcherKind::kTwoLevel;
  const int64_t node = std::min(node_of(config, needs), c.expert);
  if ((two_level || config.node_ranks > 0) && c.expert % node != 0) {
    out.push_back("parallel.node_ranks: E2005 " + std::to_string(c.expert) +
                  " ranks share experts: they cannot be cut into nodes of " + std::to_string(node) +
                  "; use " + near_divisors(c.expert, node, [](int64_t) { return true; }));
  }
  if (config.node_ranks > 0 && config.dispatcher != DispatcherKind::kAuto && !two_level) {
    out.push_back("parallel.node_ranks: E2005 " + to_text(c.dispatcher) +
                  " knows no nodes; they are two_level's");
  }
  if (c.rebalance.every > 0 && c.expert > needs.experts && needs.experts > 0) {
    out.push_back("parallel.rebalance: E2005 " + std::to_string(c.expert) + " ranks cut " +
                  std::to_string(needs.experts) +
                  " experts by their width: each has a part of the same work");
  }
  return out;
}

}  // namespace troupe
