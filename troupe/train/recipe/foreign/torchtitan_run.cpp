#include <algorithm>
#include <string>

#include "troupe/train/recipe/foreign/torchtitan_parts.h"

namespace troupe {
namespace {

// How a run is kept, watched and stopped.
class TorchtitanRun : public TorchtitanPart {
 public:
  using TorchtitanPart::TorchtitanPart;

  void convert() {
    checkpoint();
    recompute();
    observation();
    switches();
  }

 private:
  void checkpoint() {
    const std::string folder = tree_.text("checkpoint.folder", "checkpoint");
    std::string root = tree_.text("job.dump_folder", "./outputs");
    if (root.find("://") != std::string::npos) {
      draft_.refuse(tree_.origin("job.dump_folder"), "a run's folder is on a disk of this machine");
    } else {
      while (root.size() > 1 && root.ends_with('/')) root.pop_back();
      Origin from = tree_.origin("job.dump_folder", "./outputs");
      from.text += ", " + tree_.origin("checkpoint.folder", "checkpoint").text;
      draft_.set_text("checkpoint.dir", root + '/' + folder, from);
    }
    std::string on = "checkpoint.enable";
    if (tree_.given("checkpoint.enable_checkpoint")) on += "_checkpoint";
    const bool saves = tree_.yes(on, false);
    if (tree_.given(on) && saves) draft_.ignore(tree_.origin(on), "checkpoints are always made");
    if (!saves) {
      draft_.note(tree_.origin(on, "false").text +
                  ": a run here saves its end, and every 30 minutes unless checkpoint.every is 0s");
    }
    if (saves) {
      settings_.field("checkpoint.every_steps", "checkpoint.interval", "500");
      settings_.field("checkpoint.keep", "checkpoint.keep_latest_k", "10");
    }
    for (const char* key : {"checkpoint.interval", "checkpoint.keep_latest_k"}) {
      if (!saves && tree_.given(key))
        draft_.ignore(tree_.origin(key), "no checkpoints are asked for");
    }
    const std::string mode = tree_.text("checkpoint.async_mode", "disabled");
    draft_.set("checkpoint.background", mode == "disabled" ? "false" : "true",
               tree_.origin("checkpoint.async_mode", "disabled"));
    if (tree_.given("checkpoint.initial_load_path")) {
      draft_.set_text("checkpoint.init_from", tree_.text("checkpoint.initial_load_path"),
                      tree_.origin("checkpoint.initial_load_path"));
    }
    if (tree_.whole("checkpoint.load_step", -1) >= 0) {
      draft_.refuse(tree_.origin("checkpoint.load_step"), "name the step's folder in init_from");
    } else if (tree_.given("checkpoint.load_step")) {
      draft_.ignore(tree_.origin("checkpoint.load_step"), "the newest, as always");
    }
  }

  void recompute() {
    const std::string root = "activation_checkpoint.",
                      mode = tree_.text(root + "mode", "selective");
    const Origin from = tree_.origin(root + "mode", "selective");
    const std::string option = tree_.text(root + "selective_ac_option", "2");
    const bool counts =
        !option.empty() && option.find_first_not_of("0123456789") == std::string::npos;
    if (mode == "none" || mode == "full") {
      draft_.set_text("train.recompute", mode == "full" ? "1" : "none", from);
    } else if (mode == "selective" && counts) {
      Origin both = from;
      both.text += ", selective_ac_option " + option;
      draft_.set_text("train.recompute", option, both);
      return;
    } else {
      draft_.ignore(from, "memory only: train.recompute has whole blocks");
    }
    if (tree_.given(root + "selective_ac_option")) {
      draft_.ignore(tree_.origin(root + "selective_ac_option"),
                    "memory only: train.recompute has whole blocks");
    }
  }

  void observation() {
    settings_.field("log.every", "metrics.log_freq", "10");
    settings_.field_if_given("log.tensorboard", "metrics.enable_tensorboard");
    if (tree_.yes("metrics.enable_wandb", false)) {
      draft_.beside({tree_.origin("metrics.enable_wandb")}, "tools/follow_log.py RUN --to wandb");
    } else if (tree_.given("metrics.enable_wandb")) {
      draft_.ignore(tree_.origin("metrics.enable_wandb"), "off");
    }
    const bool valid = tree_.yes("validation.enable", false);
    for (const char* key : {"validation.enable", "validation.freq", "validation.steps",
                            "validation.local_batch_size"}) {
      if (tree_.given(key) && !valid)
        draft_.ignore(tree_.origin(key), "no validation is asked for");
    }
    if (!valid) return;
    draft_.need("data.valid", tree_.origin("validation.dataset", "c4_validation").text +
                                  ": make token files of it with `troupe data build`");
    settings_.field("eval.every", "validation.freq", "10");
    const int64_t steps = tree_.whole("validation.steps", -1);
    draft_.set("eval.batches", to_text(std::max<int64_t>(steps, 0)),
               tree_.origin("validation.steps", "-1"));
    settings_.field("eval.batch", "validation.local_batch_size", "8");
  }

  void switches() {
    const std::string wait = "comm.train_timeout_seconds", start = "comm.init_timeout_seconds";
    if (tree_.given(wait)) {
      draft_.set("run.hang_timeout", tree_.text(wait) + "s", tree_.origin(wait));
    }
    if (tree_.given(start)) {
      draft_.set("run.start_timeout", tree_.text(start) + "s", tree_.origin(start));
    }
    const std::string forced = "debug.moe_force_load_balance";
    if (tree_.given(forced)) {
      draft_.set("model.moe.router.force", tree_.yes(forced, false) ? "uniform" : "none",
                 tree_.origin(forced));
    }
    const bool tolerant = tree_.yes("fault_tolerance.enable", false);
    for (const std::string& name : tree_.names("fault_tolerance")) {
      const std::string key = "fault_tolerance." + name;
      if (!tree_.given(key)) continue;
      if (!tolerant) {
        draft_.ignore(tree_.origin(key), "it is off");
      } else if (name == "enable") {
        draft_.refuse(tree_.origin(key),
                      "replicas that come and go, or step apart, are not supported; `troupe launch "
                      "--max-restarts` goes on after a fault");
      } else {
        draft_.ignore(tree_.origin(key), "of fault_tolerance.enable, which is refused");
      }
    }
  }
};

}  // namespace

void convert_torchtitan_run(TorchtitanSettings& settings) {
  TorchtitanRun(settings).convert();
}

}  // namespace troupe
