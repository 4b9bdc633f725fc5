// The recipe's `parallel`: how a run uses its ranks. Nothing in it changes what is computed but
// for the order of sums, and for what `sum` and `wire` round.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/text/text.h"
#include "troupe/distributed/dispatch/dispatchers.h"
#include "troupe/distributed/mesh/dealing.h"
#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/schedule/order.h"
#include "troupe/schedule/stage_map.h"
#include "troupe/train/params/rebalance_state.h"
#include "troupe/train/recipe/parallel_facts.h"

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

// Whether ranks that share matrices cut this too: the tables, the shared expert.
enum class CutKind : uint8_t { kAuto, kOn, kOff };
constexpr auto names_of(CutKind) {
  return std::array{Named{"auto", CutKind::kAuto}, Named{"on", CutKind::kOn},
                    Named{"off", CutKind::kOff}};
}

// What context ranks exchange: keys and values that own queries see, before attention or one
// rank's at a time beside it, or heads.
enum class ContextMethod : uint8_t { kKeys, kHeads, kRing };
constexpr auto names_of(ContextMethod) {
  return std::array{Named{"keys", ContextMethod::kKeys}, Named{"heads", ContextMethod::kHeads},
                    Named{"ring", ContextMethod::kRing}};
}

constexpr auto names_of(Dealing) {
  return std::array{Named{"zigzag", Dealing::kZigzag}, Named{"documents", Dealing::kDocuments}};
}

// `uneven`: any number of ranks up to that of experts may share them, some one expert more.
enum class ExpertSplit : uint8_t { kEven, kUneven };
constexpr auto names_of(ExpertSplit) {
  return std::array{Named{"even", ExpertSplit::kEven}, Named{"uneven", ExpertSplit::kUneven}};
}

// `experts`: rows to and from experts travel beside the computation of another microbatch.
enum class Overlap : uint8_t { kNone, kExperts };
constexpr auto names_of(Overlap) {
  return std::array{Named{"none", Overlap::kNone}, Named{"experts", Overlap::kExperts}};
}

// What moves tensors between ranks: auto is NCCL on GPUs and Gloo on CPUs. Gloo of GPUs goes through
// host memory, and ranks may share one.
enum class CommBackend : uint8_t { kAuto, kNccl, kGloo };
constexpr auto names_of(CommBackend) {
  return std::array{Named{"auto", CommBackend::kAuto}, Named{"nccl", CommBackend::kNccl},
                    Named{"gloo", CommBackend::kGloo}};
}

// Priority of the streams of transfers that computation waits for.
enum class CommPriority : uint8_t { kHigh, kNormal };
constexpr auto names_of(CommPriority) {
  return std::array{Named{"high", CommPriority::kHigh}, Named{"normal", CommPriority::kNormal}};
}

struct ParallelConfig {
  int64_t data = 0;           // replicas with other samples; 0: what the other axes leave
  int64_t expert = 0;         // ranks that share the experts out; 0: chosen
  int64_t expert_tensor = 0;  // ranks that have slices of the same experts; 0: chosen
  ExpertSplit placement = ExpertSplit::kEven;
  int64_t tensor = 0;  // ranks that share each matrix, and the tokens between products; 0: chosen
  CutKind split_vocab = CutKind::kAuto, split_shared = CutKind::kAuto;
  int64_t pipeline = 0;        // ranks that share the layers; 0: chosen
  std::string stages = {};     // which units each stage has (schedule/stage_map.h); empty: chosen
  int64_t virtual_stages = 0;  // of a rank; 0: as `stages` has them, else 1
  PipelineOrder schedule = PipelineOrder::kAuto;
  int64_t context = 0;  // ranks that have parts of the same sequences; 0: chosen
  ContextMethod context_method = ContextMethod::kKeys;
  Dealing context_dealing = Dealing::kZigzag;  // of each row's tokens to context ranks
  ShardKind shard = ShardKind::kAuto;  // of the optimizer's state (zero1), of all state (full)
  int64_t shard_ranks = 0;  // ranks over which one copy is sharded; 0: all, or as chosen (kAuto)
  int64_t prefetch = 1;     // full: units gathered ahead
  bool reshard = true;      // full: drop values between forward and backward
  DispatchMode dispatch = DispatchMode::kFast;
  DispatcherConfig dispatcher;        // how rows reach other ranks' experts
  WireType wire = WireType::kNative;  // of the rows on their way there
  int64_t node_ranks = 0;     // two_level: ranks of a node; 0: of a host, or all that share experts
  RebalanceConfig rebalance;  // of experts
  SumType sum = SumType::kFp32;  // of gradients between ranks
  Overlap overlap = Overlap::kNone;
  CommBackend backend = CommBackend::kAuto;
  // NCCL alone: of rows to experts, tokens to products, keys, and what goes between stages.
  CommPriority comm_priority = CommPriority::kHigh;
  int64_t comm_blocks = 0;  // SMs that rows to experts take at most; 0: NCCL's choice
  static void visit(auto& c, auto&& f) {
    f("data", c.data, "Data-parallel ranks; 0: all that the other axes leave.", kRanks,
      kNotNegative);
    f("expert", c.expert, "Expert-parallel ranks; 0: chosen for the fastest step.", kRanks,
      kNotNegative);
    f("expert_tensor", c.expert_tensor,
      "Ranks that each hold a slice of the same experts' hidden width; 0: chosen.");
    f("placement", c.placement,
      "Experts per rank: even, or uneven, where some ranks hold one expert more.");
    f("tensor", c.tensor,
      "Tensor-parallel ranks; they divide the tokens too (sequence parallelism). 0: chosen.",
      kRanks);
    f("split_vocab", c.split_vocab,
      "tensor: divides the embedding tables by rows: on, off, or auto (tables above 1 GiB).",
      kOfTensor);
    f("split_shared", c.split_shared,
      "tensor: divides shared experts: on, off, or auto (2048 columns a rank or more).", kOfTensor);
    f("pipeline", c.pipeline,
      "Pipeline-parallel ranks: each has some of the layers (stages); 0: chosen.", kRanks);
    f("stages", c.stages,
      "pipeline: stages in Megatron's notation, \"Et*3|(t*4|)*4,t*3|t*2L\"; empty: chosen by "
      "cost.",
      kOfPipeline);
    f("virtual", c.virtual_stages,
      "pipeline: stages per rank (virtual stages); 0: as in stages, else 1.", kRanks, kNotNegative);
    f("schedule", c.schedule,
      "pipeline: order of microbatches: gpipe, 1f1b, interleaved, zb1p, zbv, dualpipev, or auto "
      "(by virtual).",
      kOfPipeline);
    f("context", c.context,
      "Ranks that share the tokens of each sequence (context parallelism); twice as many divide "
      "data.sequence. 0: chosen.",
      kRanks);
    f("context_method", c.context_method,
      "What context ranks exchange: keys, those that a rank's queries see (windows and documents "
      "make them fewer); ring, the same keys one rank's at a time beside attention; heads, so that "
      "each rank has whole rows of some heads during attention.",
      kOfContext);
    f("context_dealing", c.context_dealing,
      "Tokens of each context rank: zigzag, two equal chunks of the row, the r-th from either end; "
      "documents, eight chunks by the documents of the microbatch, where that evens out "
      "attention.",
      kOfContext);
    f("shard", c.shard,
      "Sharded state: none, zero1 (optimizer state), full (FSDP); auto: the fastest.");
    f("shard_ranks", c.shard_ranks,
      "Ranks per copy of the sharded state; 0: all, or chosen (a host's) with shard auto.", kRanks,
      kNotNegative);
    f("prefetch", c.prefetch,
      "shard full: number of units (blocks, embedding, head) gathered ahead of their use.", kRanks,
      kNotNegative, kOfFullShard);
    f("reshard", c.reshard, "shard full: frees parameters between forward and backward.",
      kOfFullShard);
    f("dispatch", c.dispatch, "fast, or exact: bitwise equal to one rank.", kOfRows);
    f("dispatcher", c.dispatcher, "Transport of rows to the ranks of their experts.", kOfRows);
    f("wire", c.wire, "Type of rows sent to experts: native; int8 and fp8 round them.", kOfRows);
    f("node_ranks", c.node_ranks, "two_level: ranks per node; 0: ranks per host.", kRanks,
      kNotNegative, kOfNodes);
    f("rebalance", c.rebalance, "Moves experts between ranks to even out their load.",
      kOfRowsCounted);
    f("sum", c.sum,
      "Type of gradient reductions between ranks: fp32 (fp64 with train.precision fp64) or bf16.");
    f("overlap", c.overlap,
      "experts: backward of a microbatch beside forward of the next while rows travel; or none.",
      kOfRows);
    f("backend", c.backend,
      "Collectives: nccl between GPUs; gloo, of GPUs through host memory, so that ranks may share "
      "one (slow: to test layouts); auto: nccl on GPUs, gloo on CPUs.");
    f("comm_priority", c.comm_priority,
      "NCCL: stream priority of rows, tokens, keys and pipeline transfers: high or normal.",
      kOfNccl);
    f("comm_blocks", c.comm_blocks,
      "NCCL: most SMs per exchange of rows (maxCTAs); 0: NCCL's choice.", kNotNegative, kOfRows,
      kOfNccl);
  }
};

// Widths, of layers that are alike, that ranks that share matrices have to divide.
struct LayerWidths {
  int64_t layer = 0;                                     // the first of them
  int64_t heads = 0, kv_heads = 0, ffn = 0, shared = 0;  // 0: it has none
};

// Under kAuto smaller tables (with gradients) and shared experts (columns a rank) stay whole.
inline constexpr double kWholeTables = 1 << 30;
inline constexpr int64_t kLeastShared = 2048;

// What a layout is chosen for.
struct LayoutNeeds {
  int64_t world = 1;
  int64_t experts = 0;               // 0: a dense model
  bool whole_state = false;          // the optimizer cannot work with a part of a matrix' state
  int64_t per_host = 0, hidden = 0;  // ranks of a host, 0: all; an expert's width, 0: not known
  bool whole_experts = false;        // with LoRA they cannot be cut by their width
  std::vector<std::string> in_bits = {}, decomposed = {};  // cut: of lora.frozen, of lora.dora
  std::vector<LayerWidths> widths = {};
  int64_t table_rows = 0, sequence = 0;  // of the padded vocabulary; tokens of a row, 0: not known
  double table_bytes = 0;                // values and gradients of the tables
  std::string optimizer = {};            // its name, for messages
  // mla, delta, train.teacher, dpo, train.update.
  bool latent = false, delta = false, teacher = false, pairs = false, in_backward = false;
  double attention_dropout = 0, gathered_lora_dropout = 0;  // the latter of adapters of all tokens
  double attention_lora_dropout = 0, experts_lora_dropout = 0;
  int64_t layers = 0, mtp = 0;       // blocks and MTP modules of the model
  std::vector<UnitLoad> loads = {};  // of its units
};

// `config` with one rank on tensor, context, pipeline and expert_tensor where it leaves them open.
ParallelConfig with_closed_axes(ParallelConfig config);
// Replicas: ranks that do not share a microbatch.
int64_t replicas_of(const ParallelConfig& config, int64_t world);
// The fewest ranks on which what is given of the axes fits: the layout is of a multiple of it, and
// of no other number where `data` is given.
int64_t least_ranks(const ParallelConfig& config);
// Throws where the config divides matrices or experts over ranks, and there is one.
void require_one_rank(const ParallelConfig& config);
// What is wrong with `pipeline`, `stages`, `virtual` and `schedule` for a model of these blocks
// and MTP modules, on any number of ranks: field and why.
std::vector<std::pair<std::string, std::string>> pipeline_faults(const ParallelConfig& config,
                                                                 int64_t layers, int64_t mtp);
// What of a model the stages are cut from, and over how many ranks.
PipelineShape pipeline_shape(const ParallelConfig& config, int64_t layers, int64_t mtp);
// All that does not fit.
std::vector<std::string> layout_faults(const ParallelConfig& config, const LayoutNeeds& needs);
// With every choice made: no kAuto is left, no dispatcher auto (chosen_for of dispatchers.h), and
// no 0 in `expert`; `tensor`, `context`, `pipeline` and `expert_tensor` are 1 where they are open;
// `node_ranks` is 0 where the dispatcher knows no nodes, and only there. A pipeline has the text of
// its stages, as chosen where the recipe has none, and `virtual` of them a rank; without one,
// `stages` is empty and `virtual` 1.
ParallelConfig resolved(const ParallelConfig& config, const LayoutNeeds& needs);
// "rows go two_level: 16 ranks share experts, over 2 nodes of 8", or "rows go two_level in int8:
// .."; empty: no rows go anywhere.
std::string why_dispatcher(const ParallelConfig& resolved, const LayoutNeeds& needs);
// A line for each key of `given` that has no effect in the layout made of it, for a model with so
// many experts.
std::vector<std::string> without_effect(const ParallelConfig& given, const ParallelConfig& resolved,
                                        int64_t experts);
// Likewise for each that NCCL alone has, in a run over Gloo.
std::vector<std::string> without_nccl(const ParallelConfig& given);
// Experts of the rank with the most of them, divided by the average of all ranks.
double most_held(const ParallelConfig& resolved, int64_t experts);
MeshShape shape_of(const ParallelConfig& resolved);

}  // namespace troupe
