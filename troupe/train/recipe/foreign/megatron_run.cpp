#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "troupe/core/text/shell_word.h"
#include "troupe/train/recipe/foreign/megatron_parts.h"

namespace troupe {
namespace {

// Token files and their order, and the tokenizer.
class MegatronData : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    if (rebuilt()) {
      script_.ignore_given({"data-path", "train-data-path", "valid-data-path", "split"},
                           "its samples are not read as they are: build them again");
    } else if (flags_.given("mock-data")) {
      draft_.set("data.train", "[{kind: mock}]", flags_.origin("mock-data"));
    } else if (flags_.given("data-path")) {
      draft_.set("data.train", sources(flags_.list("data-path")), flags_.origin("data-path"));
      const bool has_split = flags_.given("split");
      draft_.set_text("data.split", flags_.text("split", "969,30,1"),
                      flags_.origin("split", "969,30,1"));
      if (!has_split) draft_.note("--split is not given: 969,30,1, as there");
    } else if (flags_.given("train-data-path")) {
      draft_.set("data.train", sources(flags_.list("train-data-path")),
                 flags_.origin("train-data-path"));
      if (flags_.given("valid-data-path")) {
        draft_.set("data.valid", sources(flags_.list("valid-data-path")),
                   flags_.origin("valid-data-path"));
      }
    }
    order();
    if (!flags_.given("seed")) draft_.set("train.seed", "1234", flags_.origin("seed", "1234"));
    const bool positions = flags_.given("reset-position-ids");
    const bool mask = flags_.given("reset-attention-mask");
    if (positions && mask) {
      draft_.set("data.documents", "eod", flags_.origin("reset-attention-mask"));
    } else if (positions || mask) {
      draft_.refuse(flags_.origin(mask ? "reset-attention-mask" : "reset-position-ids"),
                    "--reset-position-ids and --reset-attention-mask go together: data.documents");
    }
    tokenizer();
  }

 private:
  // Whether the samples are another program's: questions whose loss counts the answers alone, or
  // what a loader of the caller's own makes.
  bool rebuilt() {
    constexpr std::string_view kChats =
        "reads questions whose loss counts the answers alone: `troupe data build --format chat` "
        "makes token files of them";
    constexpr std::string_view kOutside =
        "is given from outside the file: --variable NAME=VALUE gives it";
    const std::string set = flags_.text("dataset", "MMAP");
    const std::string mode = flags_.text("train-mode", "pretrain");
    const auto is_open = [](const std::string& value) { return value.find('$') != value.npos; };
    if (flags_.given("sft")) {
      draft_.need("data.train", "--sft " + std::string(kChats));
    } else if (mode != "pretrain") {
      draft_.need("data.train", flags_.origin("train-mode").text + ' ' +
                                    std::string(is_open(mode) ? kOutside : kChats));
    } else if (is_open(set)) {
      draft_.need("data.train", flags_.origin("dataset").text + ' ' + std::string(kOutside));
    } else if (set.ends_with("-Pretrain-Raw")) {
      draft_.need("data.train", flags_.origin("dataset").text +
                                    " reads text: `troupe data build` makes token files of it");
    } else if (set != "MMAP" && !set.ends_with("-Idxmap")) {
      constexpr std::string_view kOwn =
          "has a format of its program's own: `troupe data build` makes token files of text";
      draft_.need("data.train", flags_.origin("dataset").text + ' ' +
                                    std::string(set.find("SFT") != set.npos ? kChats : kOwn));
    } else if (flags_.text("dataloader-type") == "external") {
      draft_.need("data.train", "--dataloader-type external is a loader of its program's own");
    } else {
      return false;
    }
    return true;
  }

  // `cyclic` draws an order of its own for each epoch, as `ours` does.
  void order() {
    const std::string type = flags_.text("dataloader-type", "single");
    const Origin from = flags_.origin("dataloader-type");
    const bool cyclic = type == "cyclic";
    if (type != "single" && type != "external" && !cyclic) {
      return draft_.refuse(from, "single, cyclic and external are supported");
    }
    if (cyclic) {
      draft_.set("data.order", "ours", from);
      return draft_.note(from.text + ": samples are shuffled here too, in another order");
    }
    if (type == "single" && flags_.given("dataloader-type")) {
      draft_.ignore(from, "its default: data.order");
    }
    draft_.set("data.order", "megatron", {"the order of samples there", ""});
  }

  // "[{path: a, weight: 1}]" of "1 a 2 b" or of "a b".
  static std::string sources(const std::vector<std::string>& words) {
    double number = 0;
    const bool weighted = words.size() > 1 && words.size() % 2 == 0 && from_text(words[0], number);
    std::string out;
    for (size_t i = 0; i < words.size(); i += weighted ? 2 : 1) {
      out += out.empty() ? "{path: " : ", {path: ";
      out += quoted_yaml(words[i + (weighted ? 1 : 0)]);
      if (weighted) out.append(", weight: ").append(quoted_yaml(words[i]));
      out += '}';
    }
    return '[' + out + ']';
  }

  void tokenizer() {
    const std::string type = flags_.text("tokenizer-type");
    const Origin from = flags_.origin("tokenizer-type");
    if (type == "NullTokenizer") {
      const int64_t size = flags_.whole("vocab-size", 0);
      draft_.set("data.tokenizer", "'null:" + to_text(size) + "'", from);
      // Theirs counts one id more: the end of a document.
      if (size > 0) draft_.set("model.vocab", to_text(size + 1), flags_.origin("vocab-size"));
    } else if ((type == "GPT2BPETokenizer" || (type.empty() && flags_.stands("merge-file"))) &&
               flags_.given("vocab-file")) {
      const std::string file = flags_.text("vocab-file");
      const auto slash = file.rfind('/');
      Origin files = flags_.origin("vocab-file");
      if (flags_.given("merge-file")) files.text += ", " + flags_.origin("merge-file").text;
      draft_.set_text("data.tokenizer", slash == std::string::npos ? "." : file.substr(0, slash),
                      files);
      if (!flags_.given("vocab-size")) {
        draft_.set("model.vocab", "50257", type.empty() ? flags_.origin("vocab-file") : from);
      }
    } else if (flags_.given("tokenizer-model")) {
      if (type == "Llama2Tokenizer" && !flags_.given("vocab-size")) {
        draft_.set("model.vocab", "32000", from);
        draft_.note("--vocab-size is not given: 32000, as Llama 2's and Mixtral's tokenizers have");
      }
      draft_.set_text("data.tokenizer", flags_.text("tokenizer-model"),
                      flags_.origin("tokenizer-model"));
    } else if (!type.empty()) {
      draft_.need("data.tokenizer",
                  from.text + ": --tokenizer-model is not given: the tokenizer's file");
    }
  }
};

// The run's folder, and what a run begins with.
class MegatronCheckpoint : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    const std::string save = flags_.text("save"), load = flags_.text("load");
    if (!save.empty()) draft_.set_text("checkpoint.dir", save, flags_.origin("save"));
    if (flags_.given("most-recent-k")) {
      const int64_t keep = flags_.whole("most-recent-k", -1);
      draft_.set("checkpoint.keep", to_text(std::max<int64_t>(keep, 0)),
                 flags_.origin("most-recent-k"));
    }
    weights(save, load);
    const int64_t minutes = flags_.whole("exit-duration-in-mins", 0);
    if (minutes > 0) {
      draft_.set("run.time_limit", to_text(minutes) + "min",
                 flags_.origin("exit-duration-in-mins"));
    }
  }

 private:
  // Weights only, from another folder; or the run's own folder, to resume it.
  void weights(const std::string& save, const std::string& load) {
    const bool fresh = flags_.given("finetune"), bare = flags_.given("no-load-optim");
    const bool own = !load.empty() && load == save;
    const std::string from =
        flags_.text("pretrained-checkpoint", (fresh || bare) && !own ? load : "");
    if (!from.empty()) {
      Origin origin =
          flags_.origin(flags_.given("pretrained-checkpoint") ? "pretrained-checkpoint" : "load");
      if (bare) origin.text += " --no-load-optim";
      draft_.set_text("checkpoint.init_from", from, origin);
      if (!fresh && from == load) {
        draft_.note(
            "checkpoint.init_from begins at step 0; --load without --finetune goes on "
            "counting");
      }
    } else if (own) {
      draft_.set("checkpoint.resume", "auto", flags_.origin("load"));
      if (bare) {
        draft_.ignore(flags_.origin("no-load-optim"),
                      "a first start finds no moments, and one that goes on takes them along, so "
                      "that a stop changes nothing; weights alone are checkpoint.init_from");
      }
    } else if (load.find('$') != std::string::npos) {
      draft_.need("checkpoint.init_from",
                  "--load " + load +
                      " is given from outside the file: --variable NAME=VALUE, or leave it out; "
                      "with --save's folder the run goes on there");
    } else if (!load.empty()) {
      draft_.refuse(flags_.origin("load"),
                    "another folder than --save: name it in checkpoint.dir to go on with it, or in "
                    "checkpoint.init_from for its weights alone");
    }
  }
};

// What is looked at on the way: evaluation, logs, profiles.
class MegatronWatch : public MegatronPart {
 public:
  using MegatronPart::MegatronPart;

  void convert() {
    evaluation();
    logging();
  }

 private:
  void evaluation() {
    if (!flags_.given("eval-interval")) {
      draft_.set("eval.every", "1000", flags_.origin("eval-interval", "1000"));
    }
    if (!flags_.given("log-interval")) {
      draft_.set("log.every", "100", flags_.origin("log-interval", "100"));
    }
    if (flags_.given("tensorboard-dir")) {
      draft_.set("log.tensorboard", "true", flags_.origin("tensorboard-dir"));
      draft_.note("TensorBoard's files are written to tb/ in the run's folder");
    }
    if (flags_.given("full-validation")) return;
    if (flags_.given("step-batch-size-schedule")) {
      draft_.note(
          "--eval-iters: with --step-batch-size-schedule a batch of an evaluation is a microbatch "
          "of each rank there: multiply eval.batches by the ranks");
    }
    const int64_t micro = std::max<int64_t>(flags_.whole("micro-batch-size", 1), 1);
    const int64_t global = std::max(flags_.whole("global-batch-size", micro), micro);
    const int64_t batches = flags_.whole("eval-iters", 100) * (global / micro);
    draft_.set("eval.batches", to_text(batches), flags_.origin("eval-iters", "100"));
    draft_.set("eval.batch", to_text(micro), flags_.origin("micro-batch-size", "1"));
  }

  // What Weights & Biases gets is sent by a script that follows the run's log.
  void logging() {
    constexpr std::array<std::pair<const char*, const char*>, 4> kNames = {
        {{"wandb-project", "--project"},
         {"wandb-exp-name", "--name"},
         {"wandb-entity", "--entity"},
         {"wandb-save-dir", "--folder"}}};
    std::vector<Origin> given;
    const std::string run = flags_.text("save", "RUN");
    std::string command = "tools/follow_log.py " + shell_word(run) + " --to wandb";
    for (const auto& [flag, option] : kNames) {
      if (!flags_.given(flag)) continue;
      given.push_back(flags_.origin(flag));
      command.append(" ").append(option).append(" ").append(shell_word(flags_.text(flag)));
    }
    if (!given.empty()) draft_.beside(given, command);

    if (!flags_.given("profile")) {
      return script_.ignore_given({"profile-step-start", "profile-step-end", "profile-ranks"},
                                  "without --profile it has no effect there");
    }
    // Theirs are counted from 0.
    const int64_t begin = flags_.whole("profile-step-start", 10);
    const int64_t end = flags_.whole("profile-step-end", 12);
    draft_.set("profile.from", to_text(begin + 1), flags_.origin("profile"));
    draft_.set("profile.steps", to_text(std::max<int64_t>(end - begin, 1)),
               flags_.origin("profile-step-end", "12"));
    script_.ignore_given({"profile-ranks"}, "which ranks are looked at is not chosen here");
  }
};

}  // namespace

void convert_megatron_run(const MegatronScript& script) {
  MegatronData(script).convert();
  MegatronCheckpoint(script).convert();
  MegatronWatch(script).convert();
}

}  // namespace troupe
