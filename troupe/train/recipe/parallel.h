// The recipe's `parallel`: how a run lies on its ranks. Nothing in it changes what is computed but
// for the order of sums, and for what `sum` and `wire` round.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/text/text.h"
#include "troupe/distributed/dispatch/dispatch_mode.h"
#include "troupe/distributed/mesh/mesh.h"
#include "troupe/train/params/rebalance_state.h"

namespace troupe {

enum class ShardKind : uint8_t { kAuto, kNone, kZero1, kFull };
constexpr auto names_of(ShardKind) {
  return std::array{Named{"auto", ShardKind::kAuto}, Named{"none", ShardKind::kNone},
                    Named{"zero1", ShardKind::kZero1}, Named{"full", ShardKind::kFull}};
}

enum class SumType : uint8_t { kFp32, kBf16 };
constexpr auto names_of(SumType) {
  return std::array{Named{"fp32", SumType::kFp32}, Named{"bf16", SumType::kBf16}};
}

// `uneven`: any number of ranks up to that of experts may share them, some one expert more.
enum class ExpertSplit : uint8_t { kEven, kUneven };
constexpr auto names_of(ExpertSplit) {
  return std::array{Named{"even", ExpertSplit::kEven}, Named{"uneven", ExpertSplit::kUneven}};
}

struct ParallelConfig {
  int64_t data = 0;    // replicas with other samples; 0: what the other axes leave
  int64_t expert = 0;  // ranks that share the experts out; 0: chosen
  ExpertSplit placement = ExpertSplit::kEven;
  int64_t tensor = 1, pipeline = 1, context = 1;
  ShardKind shard = ShardKind::kAuto;  // of the optimizer's state (zero1), of all state (full)
  int64_t shard_ranks = 0;  // that hold one copy of what is sharded; 0: all, or as chosen (kAuto)
  int64_t prefetch = 1;     // full: units gathered ahead
  bool reshard = true;      // full: drop values between forward and backward
  DispatchMode dispatch = DispatchMode::kFast;
  DispatcherKind dispatcher = DispatcherKind::kAuto;  // how rows reach other ranks' experts
  WireType wire = WireType::kNative;                  // of the rows on their way there
  int64_t node_ranks = 0;     // two_level: ranks of a node; 0: of a host, or all that share experts
  RebalanceConfig rebalance;  // of experts
  SumType sum = SumType::kFp32;  // of gradients between ranks
  static void visit(auto& c, auto&& f) {
    f("data", c.data);
    f("expert", c.expert);
    f("placement", c.placement);
    f("tensor", c.tensor);
    f("pipeline", c.pipeline);
    f("context", c.context);
    f("shard", c.shard);
    f("shard_ranks", c.shard_ranks);
    f("prefetch", c.prefetch);
    f("reshard", c.reshard);
    f("dispatch", c.dispatch);
    f("dispatcher", c.dispatcher);
    f("wire", c.wire);
    f("node_ranks", c.node_ranks);
    f("rebalance", c.rebalance);
    f("sum", c.sum);
  }
};

// What a layout is chosen for.
struct LayoutNeeds {
  int64_t world = 1;
  int64_t experts = 0;          // 0: a dense model
  bool whole_matrices = false;  // the optimizer cannot work on parts of experts' matrices
  bool whole_state = false;     // nor with a part of their state
  int64_t per_host = 0;         // ranks of a host; 0: all
  int64_t hidden = 0;           // of an expert, which slices cut evenly; 0: not known
  bool whole_experts = false;   // with a bias or LoRA they cannot be cut by their width
};

// What no world can have yet: field and why.
std::vector<std::pair<std::string, std::string>> unbuilt_axes(const ParallelConfig& config);
// All that does not fit.
std::vector<std::string> layout_faults(const ParallelConfig& config, const LayoutNeeds& needs);
// With every choice made: no kAuto is left, and no 0 in `expert`, nor in two_level's `node_ranks`.
// Rows go in two levels where the ranks that share experts fill several hosts (or nodes of
// `node_ranks`), else directly.
ParallelConfig resolved(const ParallelConfig& config, const LayoutNeeds& needs);
// "rows go two_level: 16 ranks share experts, over 2 nodes of 8", or "rows go two_level in int8:
// .."; empty: no rows go anywhere.
std::string why_dispatcher(const ParallelConfig& resolved, const LayoutNeeds& needs);
// A line for each key of `given` that the layout made of it, of a model with so many experts,
// leaves without anything to do.
std::vector<std::string> without_effect(const ParallelConfig& given, const ParallelConfig& resolved,
                                        int64_t experts);
// The rank with the most experts has so many times as many as there are on average.
double most_held(const ParallelConfig& resolved, int64_t experts);
MeshShape shape_of(const ParallelConfig& resolved);

}  // namespace troupe
