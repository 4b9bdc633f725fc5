#include <algorithm>
#include <array>
#include <vector>

#include "troupe/core/text/shell_word.h"
#include "troupe/train/recipe/foreign/foundry_parts.h"

namespace troupe {
namespace {

// What Weights & Biases and MLflow get is sent by a script that follows the run's log.
void convert_loggers(FoundrySettings& settings) {
  auto& [draft, tree] = settings;
  constexpr std::array<std::array<const char*, 3>, 5> kNames = {
      {{"wandb", "project", "--project"},
       {"wandb", "name", "--name"},
       {"wandb", "entity", "--entity"},
       {"mlflow", "experiment_name", "--project"},
       {"mlflow", "run_name", "--name"}}};
  for (const std::string to : {"wandb", "mlflow"}) {
    std::vector<Origin> given;
    std::string command = "tools/follow_log.py RUN --to " + to;
    if (tree.given("loggers." + to)) given.push_back(tree.origin("loggers." + to));
    for (const auto& [logger, key, option] : kNames) {
      const std::string path = "loggers." + to + '.' + key;
      if (logger != to || !tree.given(path)) continue;
      given.push_back(tree.origin(path));
      command.append(" ").append(option).append(" ").append(shell_word(tree.text(path)));
    }
    if (!given.empty()) draft.beside(given, command);
  }
}

// Training data and its order, the tokenizer.
class FoundryData : public FoundryPart {
 public:
  using FoundryPart::FoundryPart;

  // Folders of MDS shards, which `troupe data convert` makes token files of.
  void convert() {
    const std::string root = "train_loader.dataset.";
    const bool streams = tree_.section(root + "streams");
    std::string sources;
    Origin from = tree_.origin(root + "local");
    const auto add = [&](const std::string& at, const std::string& weight) {
      std::string path = tree_.text(at + "local");
      if (path.empty()) path = tree_.text(at + "remote");
      if (path.empty()) return;
      tree_.given(at + "remote");
      const std::string split = tree_.text(at + "split", tree_.text(root + "split"));
      if (!split.empty()) path += '/' + split;
      sources += (sources.empty() ? "{path: " : ", {path: ") + quoted_yaml(path) +
                 (weight.empty() ? "" : ", weight: " + quoted_yaml(weight)) + '}';
      from = tree_.origin(at + "local");
    };
    if (streams) {
      for (const std::string& name : tree_.names(root + "streams")) {
        std::string at = root;
        at.append("streams.").append(name).append(".");
        add(at, tree_.text(at + "proportion"));
      }
    } else {
      add(root, "");
    }
    if (!sources.empty()) {
      draft_.set("data.train", '[' + sources + ']', from);
      draft_.note("data.train names folders of MDS shards: convert them to token files first");
    }
    from_hub("train_loader.dataset.hf_name", "data.train");
    from_hub("eval_loader.dataset.hf_name", "data.valid");
    if (!tree_.yes(root + "shuffle", true)) {
      draft_.refuse(tree_.origin(root + "shuffle"), "training data is always shuffled here");
    } else if (tree_.given(root + "shuffle")) {
      draft_.ignore(tree_.origin(root + "shuffle"), "training data is always shuffled here");
    }
    if (tree_.whole(root + "max_seq_len", settings_.sequence()) != settings_.sequence()) {
      draft_.refuse(tree_.origin(root + "max_seq_len"), "differs from max_seq_len");
    }
    if (tree_.given(root + "shuffle_seed")) {
      settings_.field("data.seed", root + "shuffle_seed", "");
    }
    if (tree_.given(root + "eos_token_id")) {
      draft_.ignore(tree_.origin(root + "eos_token_id"), "the token files say it");
    }
    if (tree_.given("tokenizer.name")) {
      draft_.ignore(tree_.origin("tokenizer.name"),
                    "training reads ids; name its tokenizer.json in data.tokenizer to see text");
    }
  }

 private:
  void from_hub(const std::string& key, const std::string& path) {
    if (!tree_.given(key)) return;
    draft_.need(path, tree_.origin(key).text + ": download it, make token files of it with " +
                          "`troupe data build`, and name them here");
  }
};

// The run's folder, when it saves, and what it begins with.
class FoundryCheckpoint : public FoundryPart {
 public:
  using FoundryPart::FoundryPart;

  void convert() {
    const std::string folder = tree_.text("save_folder"), name = tree_.text("run_name");
    if (folder.find("://") != std::string::npos) {
      draft_.refuse(tree_.origin("save_folder"), "a run's folder is on a disk of this machine");
    } else if (!folder.empty()) {
      std::string path = folder;
      const auto at = path.find("{run_name}");
      if (at != std::string::npos) path.replace(at, 10, name);
      draft_.set_text("checkpoint.dir", path, tree_.origin("save_folder"));
    } else if (!name.empty()) {
      draft_.set_text("checkpoint.dir", "runs/" + name, tree_.origin("run_name"));
    }
    if (tree_.given("save_interval")) {
      save_interval();
    }
    if (tree_.given("autoresume")) {
      draft_.set("checkpoint.resume", tree_.yes("autoresume", false) ? "auto" : "never",
                 tree_.origin("autoresume"));
    }
    for (const char* key : {"save_weights_only", "only_hf_checkpoint"}) {
      if (!tree_.given(key)) continue;
      if (tree_.yes(key, false)) draft_.refuse(tree_.origin(key), "a checkpoint is always whole");
      if (!tree_.yes(key, false)) draft_.ignore(tree_.origin(key), "a checkpoint is always whole");
    }
    if (tree_.given("only_composer_checkpoint")) {
      draft_.ignore(tree_.origin("only_composer_checkpoint"),
                    "`troupe export` makes other forms, when they are asked for");
    }
    if (tree_.given("save_num_checkpoints_to_keep")) {
      const int64_t keep = tree_.whole("save_num_checkpoints_to_keep", -1);
      draft_.set("checkpoint.keep", to_text(std::max<int64_t>(keep, 0)),
                 tree_.origin("save_num_checkpoints_to_keep"));
    }
    if (!tree_.given("load_path")) return;
    if (tree_.yes("load_weights_only", false)) {
      draft_.set_text("checkpoint.init_from", tree_.text("load_path"), tree_.origin("load_path"));
    } else {
      draft_.refuse(tree_.origin("load_path"),
                    "a run goes on from its own folder; load_weights_only: true is "
                    "checkpoint.init_from");
    }
  }

 private:
  void save_interval() {
    const Origin from = tree_.origin("save_interval");
    if (settings_.in_epochs("save_interval")) {
      return draft_.ignore(from,
                           "an epoch is not a length here; the end and every 30 minutes are saved: "
                           "checkpoint.every, checkpoint.every_steps");
    }
    const std::string every = settings_.span("save_interval");
    const bool in_steps = every.find_first_not_of("0123456789") == std::string::npos;
    if (in_steps && !every.empty()) {
      draft_.set("checkpoint.every_steps", every, from);
    } else if (!every.empty()) {
      draft_.refuse(from, "give it in ba: checkpoint.every_steps");
    }
  }
};

void convert_evaluation(FoundrySettings& settings) {
  auto& [draft, tree] = settings;
  const bool some = tree.section("eval_loader");
  if (tree.given("eval_interval") && !some) {
    draft.ignore(tree.origin("eval_interval"), "there is no eval_loader");
  } else if (tree.given("eval_interval") && settings.in_epochs("eval_interval") &&
             tree.text("eval_interval") != "0") {
    draft.need("eval.every", tree.origin("eval_interval").text +
                                 ": an epoch is as long as the data: say it in steps or tokens");
  } else if (tree.given("eval_interval") && tree.text("eval_interval") != "0") {
    const std::string every = settings.span("eval_interval");
    if (!every.empty()) draft.set("eval.every", every, tree.origin("eval_interval"));
  }
  if (tree.yes("eval_first", false)) {
    draft.set("eval.at_start", "true", tree.origin("eval_first"));
  }
  if (tree.given("eval_subset_num_batches")) {
    const int64_t batches = tree.whole("eval_subset_num_batches", -1);
    draft.set("eval.batches", to_text(std::max<int64_t>(batches, 0)),
              tree.origin("eval_subset_num_batches"));
    if (batches > 0) {
      draft.note("eval_subset_num_batches is of each rank, eval.batches of all ranks together");
    }
  }
  if (tree.given("device_eval_batch_size")) {
    settings.field("eval.batch", "device_eval_batch_size", "");
  }
  if (tree.given("console_log_interval")) {
    const std::string every = settings.span("console_log_interval");
    if (!every.empty()) draft.set("log.every", every, tree.origin("console_log_interval"));
  }
  const std::string valid = tree.text("eval_loader.dataset.local");
  if (!valid.empty()) {
    const std::string split = tree.text("eval_loader.dataset.split");
    draft.set("data.valid",
              "[{path: " + quoted_yaml(split.empty() ? valid : valid + '/' + split) + "}]",
              tree.origin("eval_loader.dataset.local"));
  }
}

}  // namespace

void convert_foundry_run(FoundrySettings& settings) {
  convert_loggers(settings);
  FoundryData(settings).convert();
  FoundryCheckpoint(settings).convert();
  convert_evaluation(settings);
}

}  // namespace troupe
