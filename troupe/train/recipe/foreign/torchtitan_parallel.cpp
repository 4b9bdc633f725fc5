#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "troupe/train/recipe/foreign/stage_texts.h"
#include "troupe/train/recipe/foreign/torchtitan_parts.h"

namespace troupe {
namespace {

// Pipeline ranks, the order of their work, and the layers of each stage.
class TorchtitanStages : public TorchtitanPart {
 public:
  using TorchtitanPart::TorchtitanPart;

  void convert() {
    const std::string root = "parallelism.pipeline_parallel_";
    const int64_t ranks = settings_.axis("pipeline_parallel_degree");
    const std::array<std::string, 7> keys = {root + "schedule",
                                             root + "schedule_csv",
                                             root + "layers_per_stage",
                                             root + "first_stage_less_layers",
                                             root + "last_stage_less_layers",
                                             root + "split_points",
                                             "parallelism.module_fqns_per_model_part"};
    settings_.field_if_given("parallel.pipeline", root + "degree");
    if (ranks <= 1) {
      for (const std::string& key : keys) {
        if (tree_.given(key)) {
          draft_.ignore(tree_.origin(key), "one pipeline rank leaves it nothing to do");
        }
      }
      return;
    }
    order(root + "schedule");
    if (!tree_.text(root + "schedule_csv").empty()) {
      draft_.refuse(tree_.origin(root + "schedule_csv"), "an order from a file is not read");
    }
    stages(root, ranks);
  }

 private:
  void order(const std::string& key) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kOrders = {
        {{"gpipe", "gpipe"},
         {"1f1b", "1f1b"},
         {"interleaved1f1b", "interleaved"},
         {"zbvzerobubble", "zbv"},
         {"interleavedzerobubble", "zb1p"},
         {"loopedbfs", "gpipe"},
         {"dualpipev", "dualpipev"}}};
    std::string name = tree_.text(key, "1F1B");
    const Origin from = tree_.origin(key, "1F1B");
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    const auto* const found =
        std::ranges::find(kOrders, name, &std::pair<std::string_view, std::string_view>::first);
    if (found == kOrders.end()) {
      return draft_.refuse(from, "gpipe, 1f1b, interleaved, zb1p and zbv are supported");
    }
    draft_.set("parallel.schedule", std::string(found->second), from);
    if (name == "interleavedzerobubble") {
      draft_.note(from.text + ": zb1p has one stage a rank; with several, interleaved idles less");
    }
  }

  void stages(const std::string& root, int64_t ranks) {
    const std::string parts = "parallelism.module_fqns_per_model_part",
                      points = root + "split_points", each = root + "layers_per_stage",
                      first = root + "first_stage_less_layers",
                      last = root + "last_stage_less_layers";
    std::string text;
    const std::string* from = nullptr;
    if (tree_.given(parts)) {
      text = stages_of_modules(modules(parts), settings_.layers);
      from = &parts;
    } else if (tree_.given(points) && settings_.layers > 0) {
      text = stages_of_points(tree_.list(points), settings_.layers);
      from = &points;
    } else if (tree_.given(each) || tree_.given(first) || tree_.given(last)) {
      const int64_t in = tree_.whole(first, 1), out = tree_.whole(last, 1);
      const int64_t blocks = settings_.layers + in + out, a_stage = tree_.whole(each, 0);
      const int64_t count =
          a_stage > 0 ? (blocks + a_stage - 1) / a_stage : ranks * default_virtual(root);
      if (settings_.layers > 0) text = stages_of_weights(settings_.layers, count, in, out);
      from = tree_.given(each) ? &each : tree_.given(first) ? &first : &last;
    }
    for (const std::string& key : {parts, points, each, first, last}) {
      if (from == nullptr || !tree_.given(key) || key == *from) continue;
      draft_.ignore(tree_.origin(key), "parallel.stages has it");
    }
    if (from == nullptr) return;
    if (!text.empty()) return draft_.set_text("parallel.stages", text, tree_.origin(*from));
    if (settings_.layers == 0) {
      return draft_.need("parallel.stages", tree_.origin(*from).text +
                                                ": the model's layers are not known; "
                                                "\"Ett|ttL\" are four on two stages");
    }
    draft_.refuse(tree_.origin(*from), "no whole stages with an embedding and a head come of it");
  }

  // Two stages a rank for orders that have several.
  int64_t default_virtual(const std::string& root) {
    std::string name = tree_.text(root + "schedule", "1F1B");
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    return name == "1f1b" || name == "gpipe" ? 1 : 2;
  }

  std::vector<std::vector<std::string>> modules(const std::string& path) const {
    std::vector<std::vector<std::string>> out;
    const Yaml* at = &settings_.root;
    for (size_t begin = 0; at != nullptr && begin <= path.size();) {
      const size_t end = std::min(path.find('.', begin), path.size());
      const std::string name = path.substr(begin, end - begin);
      const Yaml* inner = nullptr;
      for (const Yaml::Field& f : at->fields) {
        if (f.name == name) inner = &f.value;
      }
      at = inner;
      begin = end + 1;
    }
    if (at == nullptr) return out;
    for (const Yaml& part : at->items) {
      std::vector<std::string>& stage = out.emplace_back();
      for (const Yaml& name : part.items) stage.push_back(name.text);
    }
    return out;
  }
};

// Ranks along the other axes, and the state that they share.
class TorchtitanRanks : public TorchtitanPart {
 public:
  using TorchtitanPart::TorchtitanPart;

  void convert() {
    const std::string root = "parallelism.";
    for (const auto& [theirs, ours] : {std::pair{"tensor_parallel_degree", "tensor"},
                                       {"context_parallel_degree", "context"},
                                       {"expert_parallel_degree", "expert"},
                                       {"expert_tensor_parallel_degree", "expert_tensor"}}) {
      settings_.field_if_given(std::string("parallel.") + ours, root + theirs);
    }
    dealing(root + "context_parallel_load_balancer");
    settings_.only(
        root + "enable_sequence_parallel", true,
        "ranks that share matrices always share the tokens between the products: whole tokens on "
        "each would cost as many times the activations");
    const std::string loss = root + "disable_loss_parallel";
    if (tree_.given(loss) && tree_.yes(loss, false)) {
      draft_.set("parallel.split_vocab", "off", tree_.origin(loss));
    } else if (tree_.given(loss)) {
      draft_.ignore(tree_.origin(loss), "parallel.split_vocab cuts tables where they are large");
    }
    sharding();
    TorchtitanStages(settings_).convert();
  }

 private:
  // shard: full over DP-shard x CP ranks, which is what ours counts.
  void sharding() {
    const std::string r = "parallelism.data_parallel_replicate_degree",
                      s = "parallelism.data_parallel_shard_degree",
                      reshard = "parallelism.fsdp_reshard_after_forward";
    const int64_t replicas = tree_.whole(r, 1), shard = tree_.whole(s, -1);
    const Origin from = tree_.origin(s, "-1"), copies = tree_.origin(r, "1");
    const bool full = shard != 1;
    draft_.set("parallel.shard", full ? "full" : "none", from);
    if (shard > 0) {
      Origin both = from;
      both.text += ", " + copies.text;
      draft_.set("parallel.data", to_text(replicas * shard), both);
    }
    if (full && replicas > 1 && shard > 0) {
      draft_.set("parallel.shard_ranks", to_text(shard * settings_.axis("context_parallel_degree")),
                 copies);
    } else if (full && replicas > 1) {
      draft_.need("parallel.shard_ranks",
                  copies.text + ": the ranks of a stage, over tensor ranks and over these");
    } else if (tree_.given(r)) {
      draft_.ignore(copies, full ? "one copy of the state is what shard: full has"
                                 : "as many as the ranks give");
    }
    if (!full) {
      if (tree_.given(reshard)) draft_.ignore(tree_.origin(reshard), "no weights are sharded");
      return;
    }
    const std::string policy = tree_.text(reshard, "default");
    const bool stages = settings_.axis("pipeline_parallel_degree") > 1;
    if (policy != "default" && policy != "always" && policy != "never") {
      return draft_.refuse(tree_.origin(reshard), "default, always and never are supported");
    }
    const bool keeps = policy == "never" || (policy == "default" && stages);
    draft_.set("parallel.reshard", keeps ? "false" : "true", tree_.origin(reshard, "default"));
  }

  // Which tokens of a row a context rank has: no result depends on it.
  void dealing(const std::string& key) {
    if (!tree_.given(key)) return;
    const std::string name = tree_.text(key);
    if (tree_.whole("parallelism.context_parallel_degree", 1) <= 1) {
      draft_.ignore(tree_.origin(key), "one context rank leaves it nothing to do");
    } else if (name == "headtail" || name == "ptrr") {
      draft_.set("parallel.context_dealing", name == "ptrr" ? "documents" : "zigzag",
                 tree_.origin(key));
    } else {
      draft_.ignore(tree_.origin(key), "rows are dealt from both ends; no result depends on it");
    }
  }
};

}  // namespace

void convert_torchtitan_parallel(TorchtitanSettings& settings) {
  TorchtitanRanks(settings).convert();
}

}  // namespace troupe
