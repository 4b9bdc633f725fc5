#include <string>
#include <vector>

#include "troupe/train/recipe/foreign/foundry_parts.h"

namespace troupe {
namespace {

// Who shares what, and how long a rank waits for the others.
class FoundryRanks : public FoundryPart {
 public:
  using FoundryPart::FoundryPart;

  void convert() {
    if (tree_.whole("tp_config.tensor_parallel_degree", 1) > 1 ||
        tree_.whole("parallelism_config.tp.tensor_parallel_degree", 1) > 1) {
      tensor();
    }
    sharding("fsdp_config");
    sharding("parallelism_config.fsdp");
    if (tree_.given("dist_timeout")) {
      draft_.set("run.hang_timeout", tree_.text("dist_timeout") + "s",
                 tree_.origin("dist_timeout"));
    }
  }

 private:
  void tensor() {
    for (const char* key :
         {"tp_config.tensor_parallel_degree", "parallelism_config.tp.tensor_parallel_degree"}) {
      if (tree_.given(key)) settings_.field("parallel.tensor", key, "");
    }
    if (tree_.text("model.ffn_config.ffn_type").find("moe") != std::string::npos) {
      draft_.note(
          "LLM-Foundry refuses tensor parallelism beside experts; here the ranks that share "
          "experts are counted across those that share matrices");
    }
  }

  void sharding(const std::string& root) {
    strategy(root);
    const std::string again = root + ".activation_checkpointing";
    if (tree_.given(again)) {
      draft_.set_text("train.recompute", tree_.yes(again, false) ? "1" : "none",
                      tree_.origin(again));
    }
    for (const TreeRule& rule : foundry_shard_rules()) {
      const std::string path = root + '.' + std::string(rule.path);
      if (tree_.given(path)) draft_.ignore(tree_.origin(path), rule.text);
    }
  }

  // Composer's FSDP: what is sharded, and over how many ranks.
  void strategy(const std::string& root) {
    constexpr const char *kShard = "parallel.shard", *kReshard = "parallel.reshard",
                         *kRanks = "parallel.shard_ranks";
    const std::string key = root + ".sharding_strategy", name = tree_.text(key);
    const Origin from = tree_.origin(key);
    const bool hybrid = name.find("HYBRID_SHARD") != std::string::npos;
    if (name == "NO_SHARD") {
      draft_.set(kShard, "none", from);
    } else if (name == "FULL_SHARD" || name == "SHARD_GRAD_OP" || hybrid) {
      draft_.set(kShard, "full", from);
      if (name == "SHARD_GRAD_OP" || name.ends_with("ZERO2")) draft_.set(kReshard, "false", from);
    } else if (tree_.given(key)) {
      draft_.refuse(from, "FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD and NO_SHARD are supported");
    }
    const std::string mesh = root + ".device_mesh", moe = "model.ffn_config.device_mesh",
                      shard = root + ".data_parallel_shard_degree",
                      copies = root + ".data_parallel_replicate_degree";
    // One number: over all of so many ranks; two: copies, and the ranks of each.
    for (const std::string& path : {mesh, moe}) {
      if (!tree_.given(path)) continue;
      const std::vector<std::string> axes = tree_.list(path);
      const size_t most = path == moe ? 1 : 2;
      if (axes.empty() || axes.size() > most) {
        draft_.refuse(tree_.origin(path), most == 1 ? "one number, the ranks that share a copy"
                                                    : "one number, or copies and ranks of each");
      } else {
        draft_.set(kRanks, axes.back(), tree_.origin(path));
      }
    }
    if (tree_.whole(shard, -1) > 0) {
      draft_.set(kRanks, tree_.text(shard), tree_.origin(shard));
    } else if (tree_.given(shard)) {
      draft_.ignore(tree_.origin(shard), "all ranks, as shard_ranks 0 has it");
    }
    if (tree_.given(copies)) {
      draft_.ignore(tree_.origin(copies), "as many as parallel.shard_ranks leaves");
    }
    if (hybrid) draft_.need(kRanks, from.text + ": the ranks that share a copy, there a host's");
  }
};

}  // namespace

void convert_foundry_parallel(FoundrySettings& settings) {
  FoundryRanks(settings).convert();
}

}  // namespace troupe
