#include "troupe/train/recipe/graph_faults.h"

#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

struct Excluded {
  bool is_set;
  const char *key, *why;
};

constexpr const char* kNoise = "draws numbers of its own for each step; set it to 0";

std::vector<Excluded> of_gate(const GateConfig* gate) {
  if (gate == nullptr) return {};
  return {{gate->jitter > 0, "model.moe.router.jitter", kNoise},
          {gate->force == Force::kRandom || (gate->force == Force::kBiased && !gate->force_fixed),
           "model.moe.router.force",
           "draws numbers of its own for each step; take uniform, or biased with force_fixed"}};
}

std::vector<Excluded> of_model(const ModelConfig& model) {
  std::vector<Excluded> out = {{model.dropout > 0, "model.dropout", kNoise},
                               {model.attn_dropout > 0, "model.attn_dropout", kNoise},
                               {model.lora.factors.dropout > 0, "model.lora.dropout", kNoise},
                               {model.moe.ffn.lora.dropout > 0, "model.moe.lora.dropout", kNoise},
                               {model.delta.has_value(), "model.delta",
                                "copies from the host where chunks begin; set it to null"}};
  const MoeConfig& moe = model.moe;
  if (moe.experts == 0) return out;
  out.push_back({moe.ffn.impl != ExpertsImpl::kGrouped, "model.moe.impl",
                 "reads on the host how many rows each expert has; take grouped"});
  out.push_back({moe.capacity.budget > 0, "model.moe.capacity.budget",
                 "repeats a step that had too many rows; set it to 0"});
  for (const Excluded& x : of_gate(gate_of(moe.router))) out.push_back(x);
  for (const Excluded& x : of_gate(moe.table_layers > 0 ? &moe.table.gate : nullptr)) {
    out.push_back({x.is_set, "model.moe.table", kNoise});
  }
  return out;
}

std::vector<Excluded> of_run(const Recipe& r) {
  const ParallelConfig& p = r.parallel;
  constexpr const char* kRanks = "needs more ranks than one, and a graph is of one; set it to 1";
  return {
      {r.run.device == DeviceKind::kCpu, "run.device",
       "is cpu, which has no graphs; set it to cuda"},
      {r.train.teacher.has_value(), "train.teacher",
       "computes another model within the step, which no graph holds; set it to null"},
      {r.train.loss == LossKind::kDpo, "train.loss",
       "dpo computes the reference before each step, which no graph holds; set it to "
       "cross_entropy"},
      {r.train.offload_state, "train.offload_state",
       "copies state from and to host memory between kernels; set it to false"},
      {r.train.update == UpdatePlace::kInBackward, "train.update",
       "asks the host before each layer's update (in_backward); set it to after_backward"},
      {r.train.clip_by == ClipBy::kLastStep, "train.clip_by",
       "takes its norm from the host (last_step); set it to this_step"},
      {!r.run.replay.empty(), "run.replay", "gives each step choices from a file; leave it out"},
      {r.data.documents != Documents::kNone, "data.documents",
       "gives attention other lengths in each step, from the host; set it to none"},
      {p.expert > 1, "parallel.expert", kRanks},
      {p.expert_tensor > 1, "parallel.expert_tensor", kRanks},
      {p.tensor > 1, "parallel.tensor", kRanks},
      {p.pipeline > 1, "parallel.pipeline", kRanks},
      {p.context > 1, "parallel.context", kRanks}};
}

}  // namespace

std::vector<std::string> graph_faults(const Recipe& r) {
  std::vector<std::string> out;
  if (!r.train.cuda_graph) return out;
  for (const std::vector<Excluded>& some : {of_run(r), of_model(r.model)}) {
    for (const Excluded& x : some) {
      if (x.is_set) {
        out.push_back(std::string("does not go with ") + x.key + ", which " + x.why +
                      ", or leave train.cuda_graph out");
      }
    }
  }
  return out;
}

}  // namespace troupe
