#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "troupe/train/recipe/foreign/megatron_parts.h"
#include "troupe/train/recipe/foreign/stage_texts.h"

namespace troupe {
namespace {

// Which layers each stage has. Results do not depend on it: what cannot be written is chosen.
class MegatronStages : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    constexpr const char *kLayout = "pipeline-model-parallel-layout",
                         *kEach = "num-layers-per-virtual-pipeline-stage",
                         *kStages = "num-virtual-stages-per-pipeline-rank";
    const int64_t ranks = flags_.whole("pipeline-model-parallel-size", 1);
    const auto ignored = [&](std::initializer_list<const char*> names, std::string_view why) {
      for (const char* name : names) {
        if (flags_.given(name)) draft_.ignore(flags_.origin(name), why);
      }
    };
    const auto counts = {"decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers",
                         "account-for-embedding-in-pipeline-split",
                         "account-for-loss-in-pipeline-split"};
    if (ranks <= 1) {
      ignored({kLayout, kEach, kStages}, "one pipeline rank leaves it nothing to do");
      return ignored(counts, "one pipeline rank leaves it nothing to do");
    }
    if (flags_.given(kLayout)) {
      const std::string text = stages_of_layout(flags_.text(kLayout));
      if (text.empty()) {
        draft_.refuse(flags_.origin(kLayout), "E t m L | * ( ) and Python's lists are read");
      } else {
        draft_.set_text("parallel.stages", text, flags_.origin(kLayout));
      }
      ignored({kEach, kStages}, "the layout has the stages");
      return ignored(counts, "the layout has the stages");
    }
    const int64_t layers = flags_.whole("num-layers", 0), each = flags_.whole(kEach, 0);
    int64_t of_rank = flags_.whole(kStages, 1);
    if (each > 0 && layers % (each * ranks) == 0) {
      of_rank = layers / (each * ranks);
      draft_.set("parallel.virtual", to_text(of_rank), flags_.origin(kEach));
    } else if (flags_.given(kEach)) {
      draft_.refuse(flags_.origin(kEach), to_text(layers) +
                                              " layers do not divide into stages of " +
                                              to_text(each) + " on " + to_text(ranks) + " ranks");
    } else if (flags_.given(kStages)) {
      draft_.set("parallel.virtual", to_text(of_rank), flags_.origin(kStages));
    }
    stages_by_counts(ranks, of_rank, layers, counts);
  }

 private:
  void stages_by_counts(int64_t ranks, int64_t of_rank, int64_t layers,
                        std::initializer_list<const char*> flags) {
    const auto given = std::ranges::find_if(flags, [&](const char* f) { return flags_.given(f); });
    if (given == flags.end()) return;
    const auto number = [&](const char* flag) {
      return flags_.given(flag) ? std::optional(flags_.whole(flag, 0)) : std::nullopt;
    };
    const std::string text =
        of_rank > 1 ? std::string()
                    : stages_of_counts(
                          {.layers = layers,
                           .mtp = flags_.whole("mtp-num-layers", 0),
                           .pipeline = ranks,
                           .first = number("decoder-first-pipeline-num-layers"),
                           .last = number("decoder-last-pipeline-num-layers"),
                           .embedding = flags_.given("account-for-embedding-in-pipeline-split"),
                           .loss = flags_.given("account-for-loss-in-pipeline-split")});
    if (!text.empty()) draft_.set_text("parallel.stages", text, flags_.origin(*given));
    for (const char* flag : flags) {
      if (!flags_.given(flag) || (flag == *given && !text.empty())) continue;
      draft_.ignore(flags_.origin(flag), text.empty() ? "speed only: the stages are chosen by cost"
                                                      : "parallel.stages has it");
    }
  }
};

// Ranks along each axis, and how they talk to each other.
class MegatronRanks : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    axis("tensor-model-parallel-size", "tensor");
    axis("pipeline-model-parallel-size", "pipeline");
    context();
    tensor();
    MegatronStages(script_).convert();
    backend();
    if (flags_.given("high-priority-stream-groups")) {
      draft_.set("parallel.comm_priority", "high", flags_.origin("high-priority-stream-groups"));
    }
    if (flags_.given("distributed-timeout-minutes")) {
      draft_.set("run.hang_timeout", flags_.text("distributed-timeout-minutes") + "min",
                 flags_.origin("distributed-timeout-minutes"));
    }
  }

 private:
  // Ranks along an axis.
  void axis(const std::string& flag, const std::string& name) {
    if (flags_.given(flag)) draft_.set("parallel." + name, flags_.text(flag), flags_.origin(flag));
  }

  void backend() {
    constexpr const char* kFlag = "distributed-backend";
    if (!flags_.given(kFlag)) return;
    const std::string name = flags_.text(kFlag);
    if (name == "nccl") {
      return draft_.ignore(flags_.origin(kFlag), "NCCL between GPUs, as by default here");
    }
    if (name != "gloo") return draft_.refuse(flags_.origin(kFlag), "nccl and gloo are supported");
    draft_.set("parallel.backend", name, flags_.origin(kFlag));
  }

  void context() {
    // DeepSpeed's ranks exchange heads around attention.
    constexpr const char* kHeads = "ds-sequence-parallel-size";
    if (flags_.given(kHeads)) {
      draft_.set("parallel.context", flags_.text(kHeads), flags_.origin(kHeads));
      script_.ignore_given({"force-ds-sequence-parallel"}, "its size says it");
      if (flags_.whole(kHeads, 1) > 1) {
        draft_.set("parallel.context_method", "heads", flags_.origin(kHeads));
      }
    }
    axis("context-parallel-size", "context");
    const int64_t ranks = flags_.whole("context-parallel-size", 1);
    if (!flags_.given("cp-comm-type")) return;
    if (ranks > 1 && flags_.text("cp-comm-type") == "a2a") {
      return draft_.set("parallel.context_method", "heads", flags_.origin("cp-comm-type"));
    }
    draft_.ignore(flags_.origin("cp-comm-type"),
                  ranks == 1 ? "one context rank leaves it nothing to do"
                             : "speed only: ranks fetch the keys that their queries see, by "
                               "documents and window");
  }

  // Between the products tokens are always cut over the ranks that share them.
  void tensor() {
    const int64_t ranks = flags_.whole("tensor-model-parallel-size", 1);
    constexpr std::string_view kAlways =
        "always so here: between the products each rank has its part of the tokens";
    script_.ignore_given({"sequence-parallel", "distribute-saved-activations"}, kAlways);
    if (ranks > 1 && !flags_.given("sequence-parallel")) {
      draft_.note("--sequence-parallel is not given: it is " + std::string(kAlways));
    }
    const std::pair<const char*, const char*> no_effect[] = {
        {"tp-comm-overlap",
         "speed only: in backward tokens' gradients travel beside the gradients of weights"},
        {"moe-extended-tp", "no effect on results: parallel.expert_tensor cuts experts' widths"}};
    for (const auto& [flag, why] : no_effect) {
      script_.ignore_given({flag}, ranks > 1 ? why : "one tensor rank leaves it nothing to do");
    }
    slices(ranks);
  }

  // Ranks that have slices of the same experts; by default as many as share a matrix.
  void slices(int64_t tensor) {
    constexpr const char* kFlag = "expert-tensor-parallel-size";
    if (flags_.given(kFlag)) {
      return draft_.set("parallel.expert_tensor", to_text(flags_.whole(kFlag, 1)),
                        flags_.origin(kFlag));
    }
    const bool whole = script_.megablocks() || script_.deepspeed();  // experts' are never cut
    if (tensor == 1 || whole || script_.experts() == 0) return;
    draft_.set("parallel.expert_tensor", to_text(tensor), flags_.origin(kFlag, to_text(tensor)));
    draft_.note("--" + std::string(kFlag) + " is not given, which means " + to_text(tensor) +
                " there, as many as tensor ranks, and needs as many ranks for each of the experts' "
                "ranks. Whole experts (parallel.expert_tensor: 1) are nearly always faster: rows "
                "then go to one rank each");
  }
};

// What ranks keep: the state that they shard, what is computed again in backward, and what waits
// for it in host memory.
class MegatronMemory : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    sharding();
    recompute();
    offload();
  }

 private:
  // Which state the ranks shard; without a flag the run chooses.
  void sharding() {
    constexpr const char* kShard = "parallel.shard";
    const std::string strategy = flags_.text("data-parallel-sharding-strategy");
    const bool all = flags_.given("use-torch-fsdp2");
    const bool optimizer = flags_.given("use-distributed-optimizer");
    if (!strategy.empty()) {
      const Origin from = flags_.origin("data-parallel-sharding-strategy");
      const bool known = strategy == "no_shard" || strategy == "optim" ||
                         strategy == "optim_grads" || strategy == "optim_grads_params";
      if (!known) {
        return draft_.refuse(from,
                             "no_shard, optim, optim_grads and optim_grads_params are supported");
      }
      // Gradients that are summed are kept by their owner alone in any case.
      const bool full = strategy == "optim_grads_params";
      draft_.set(kShard, full ? "full" : strategy == "no_shard" ? "none" : "zero1", from);
    } else if (flags_.given("zero-stage")) {
      const int64_t stage = flags_.whole("zero-stage", 0);
      draft_.set(kShard,
                 stage >= 3  ? "full"
                 : stage > 0 ? "zero1"
                             : "none",
                 flags_.origin("zero-stage"));
    } else if (all) {
      draft_.set(kShard, "full", flags_.origin("use-torch-fsdp2"));
    } else if (optimizer) {
      draft_.set(kShard, "zero1", flags_.origin("use-distributed-optimizer"));
    }
  }

  void recompute() {
    constexpr const char* kBefore = "activations-checkpoint-method";
    if (flags_.given(kBefore)) {
      draft_.set_text("train.recompute", "1", flags_.origin(kBefore));
      script_.ignore_given({"activations-checkpoint-num-layers"},
                           "memory only: each block is computed again from its own input here");
    }
    const std::string granularity = flags_.text("recompute-granularity");
    const Origin from = flags_.origin("recompute-granularity");
    if (granularity == "full") {
      recompute_blocks(from);
      script_.ignore_given({"recompute-modules"}, "of --recompute-granularity selective alone");
    } else if (granularity == "selective") {
      recompute_modules(from);
      script_.ignore_given({"recompute-method", "recompute-num-layers"},
                           "of --recompute-granularity full alone");
    } else {
      script_.ignore_given({"recompute-method", "recompute-num-layers", "recompute-modules"},
                           "without --recompute-granularity it has no effect there");
      if (!granularity.empty()) draft_.refuse(from, "full and selective are supported");
    }
  }

  // Its layers are of each pipeline stage, of which that flag allows one alone.
  void offload() {
    constexpr const char* kLayers = "cpu-offloading-num-layers";
    if (!flags_.given("cpu-offloading")) {
      return script_.ignore_given({kLayers}, "without --cpu-offloading it has no effect there");
    }
    const Origin from = flags_.origin("cpu-offloading");
    const int64_t layers = flags_.whole(kLayers, 0);
    if (layers == 0) {
      draft_.ignore(from, "of no layers: --cpu-offloading-num-layers is 0");
      return script_.ignore_given({kLayers}, "none are offloaded");
    }
    draft_.set("train.offload_layers", to_text(layers), flags_.origin(kLayers));
    draft_.ignore(from, "--cpu-offloading-num-layers says it");
  }

  // uniform: all layers, some at a time; block: the first ones of each pipeline stage.
  void recompute_blocks(const Origin& from) {
    constexpr std::string_view kOneByOne =
        "memory only: each block is computed again from its own input here";
    const std::string method = flags_.text("recompute-method");
    const int64_t all = flags_.whole("num-layers", 0);
    const int64_t stages = std::max<int64_t>(flags_.whole("pipeline-model-parallel-size", 1), 1);
    const int64_t some = std::min(flags_.whole("recompute-num-layers", 0) * stages, all);
    if (method != "block" || some <= 0 || some >= all) {
      draft_.set_text("train.recompute", "1", from);
      return script_.ignore_given({"recompute-method", "recompute-num-layers"}, kOneByOne);
    }
    const std::string pattern = "[1]*" + to_text(some) + "+[0]*" + to_text(all - some);
    Origin both = flags_.origin("recompute-num-layers");
    both.text = from.text + ' ' + flags_.origin("recompute-method").text + ' ' + both.text;
    draft_.set_text("train.recompute", pattern, both);
  }

  // "[moe_act,mlp]" of YAML, or words.
  std::vector<std::string> module_names() {
    std::string text;
    for (const std::string& word : flags_.list("recompute-modules")) text += word + ' ';
    for (char& c : text) {
      if (std::string_view("[],\"'").find(c) != std::string_view::npos) c = ' ';
    }
    std::istringstream in(text);
    return {std::istream_iterator<std::string>(in), {}};
  }

  void recompute_modules(const Origin& from) {
    const std::vector<std::string> modules = module_names();
    constexpr std::string_view kScores = "attention never keeps its scores here";
    if (modules.empty()) return draft_.ignore(from, kScores);
    draft_.ignore(from, "its modules say it");
    const bool whole = std::find(modules.begin(), modules.end(), "moe") != modules.end();
    for (const std::string& module : modules) {
      const Origin origin{"--recompute-modules " + module,
                          flags_.origin("recompute-modules").place};
      if (module == "moe") {
        draft_.set("model.moe.recompute", "layer", origin);
      } else if (module == "moe_act") {
        if (!whole) draft_.set("model.moe.recompute", "act", origin);
        if (whole) draft_.ignore(origin, "the module moe has it");
      } else if (module == "core_attn") {
        draft_.ignore(origin, kScores);
      } else if (module == "layernorm" || module == "mla_up_proj" || module == "mlp" ||
                 module == "shared_experts") {
        draft_.ignore(origin, "memory only: it is kept here; train.recompute drops whole blocks");
      } else {
        draft_.refuse(origin,
                      "core_attn, moe, moe_act, layernorm, mla_up_proj, mlp and shared_experts "
                      "are supported");
      }
    }
  }
};

}  // namespace

void convert_megatron_parallel(const MegatronScript& script) {
  MegatronRanks(script).convert();
  MegatronMemory(script).convert();
}

}  // namespace troupe
