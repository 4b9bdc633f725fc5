#include <cmath>

#include "troupe/train/recipe/foreign/torchtitan_parts.h"

namespace troupe {
namespace {

// What is trained on how much data, and how fast.
class TorchtitanTraining : public TorchtitanPart {
 public:
  using TorchtitanPart::TorchtitanPart;

  void convert() {
    optimizer();
    schedule();
    training();
  }

 private:
  void optimizer() {
    const std::string name = tree_.text("optimizer.name", "AdamW");
    const Origin from = tree_.origin("optimizer.name", "AdamW");
    const double decay = tree_.number("optimizer.weight_decay", 0.1);
    if (name != "AdamW" && (name != "Adam" || decay != 0)) {
      return draft_.refuse(from, name == "Adam" ? "adds weight decay to gradients; AdamW does not"
                                                : "AdamW, and Adam without weight decay, are "
                                                  "there");
    }
    const std::string root = "train.optimizer.";
    draft_.set(root + "kind", "adamw", from);
    settings_.field(root + "lr", "optimizer.lr", "8e-4");
    Origin betas = tree_.origin("optimizer.beta1", "0.9");
    betas.text += ", " + tree_.origin("optimizer.beta2", "0.95").text;
    draft_.set(
        root + "betas",
        quoted_list({tree_.text("optimizer.beta1", "0.9"), tree_.text("optimizer.beta2", "0.95")}),
        betas);
    settings_.field(root + "eps", "optimizer.eps", "1e-8");
    settings_.field(root + "weight_decay", "optimizer.weight_decay", "0.1");
    settings_.only("optimizer.early_step_in_backward", false,
                   "the update comes after the gradient's norm, which is of all");
  }

  void schedule() {
    const std::string decay = tree_.text("lr_scheduler.decay_type", "linear");
    const Origin from = tree_.origin("lr_scheduler.decay_type", "linear");
    const std::string root = "train.schedule.";
    const std::string least =
        tree_.given("lr_scheduler.lr_min") ? "lr_scheduler.lr_min" : "lr_scheduler.min_lr_factor";
    const bool part = tree_.given("lr_scheduler.decay_ratio");
    if (decay != "linear" && decay != "cosine" && (decay != "sqrt" || !part)) {
      return draft_.refuse(from, "linear and cosine are supported, and sqrt with a decay_ratio");
    }
    draft_.set(root + "kind", part ? "wsd" : decay, from);
    settings_.field(root + "warmup", "lr_scheduler.warmup_steps", "200");
    settings_.field(root + "min", least, "0");
    if (!part) return;
    draft_.set(root + "tail", decay, from);
    draft_.set(root + "decay",
               to_text(std::llround(tree_.number("lr_scheduler.decay_ratio", 0) *
                                    static_cast<double>(tree_.whole("training.steps", 10000)))),
               tree_.origin("lr_scheduler.decay_ratio"));
  }

  void training() {
    settings_.field("data.sequence", "training.seq_len", "2048");
    settings_.field("train.steps", "training.steps", "10000");
    settings_.field("train.clip", "training.max_norm", "1.0");
    batch();
    const std::string type = tree_.text("training.mixed_precision_param", "bfloat16");
    const Origin from = tree_.origin("training.mixed_precision_param", "bfloat16");
    if (type == "bfloat16" || type == "float32") {
      draft_.set("train.precision", type == "bfloat16" ? "bf16" : "fp32", from);
    } else {
      draft_.refuse(from, "bfloat16 and float32 are supported");
    }
    if (tree_.text("training.dtype", "float32") != "float32") {
      draft_.refuse(tree_.origin("training.dtype"), "master weights are always f32");
    } else if (tree_.given("training.dtype")) {
      draft_.ignore(tree_.origin("training.dtype"), "master weights are always f32");
    }
    for (const std::string root : {"training.", "debug."}) {
      settings_.field_if_given("train.seed", root + "seed");
      settings_.field_if_given("run.deterministic", root + "deterministic");
    }
    std::string set = tree_.origin("training.dataset", "c4_test").text;
    if (tree_.given("training.dataset_path")) {
      set += ", " + tree_.origin("training.dataset_path").text;
    }
    draft_.need("data.train", set +
                                  ": make token files of it with `troupe data build`, and name "
                                  "them here");
  }

  // Theirs is of a data-parallel rank, ours of all.
  void batch() {
    const int64_t local = tree_.whole("training.local_batch_size", 8);
    const Origin from = tree_.origin("training.local_batch_size", "8");
    const int64_t replicas = settings_.axis("data_parallel_replicate_degree"),
                  shard = tree_.whole("parallelism.data_parallel_shard_degree", -1);
    if (tree_.whole("training.global_batch_size", -1) > 0) {
      settings_.field("train.global_batch", "training.global_batch_size", "");
    } else if (shard > 0) {
      Origin all = from;
      all.text += " on each of " + to_text(replicas * shard) + " data-parallel ranks";
      draft_.set("train.global_batch", to_text(local * replicas * shard), all);
    } else {
      draft_.need("train.global_batch",
                  from.text +
                      " sequences on each data-parallel rank, and data_parallel_shard_"
                      "degree -1 leaves open how many there are");
    }
    const bool stages = settings_.axis("pipeline_parallel_degree") > 1;
    const std::string micro = "parallelism.pipeline_parallel_microbatch_size";
    if (stages) return settings_.field("train.micro_batch", micro, "1");
    draft_.set("train.micro_batch", to_text(local), from);
    if (tree_.given(micro)) draft_.ignore(tree_.origin(micro), "there is one stage");
  }
};

}  // namespace

void convert_torchtitan_training(TorchtitanSettings& settings) {
  TorchtitanTraining(settings).convert();
}

}  // namespace troupe
