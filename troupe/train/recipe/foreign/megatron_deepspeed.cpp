#include <cmath>

#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/train/recipe/foreign/megatron_parts.h"
#include "troupe/train/recipe/foreign/tree.h"

namespace troupe {
namespace {

constexpr auto kNoResult = TreeRule::kIgnored;
constexpr std::string_view kByFlags = "the flags say it";
constexpr std::string_view kPrinted = "what is printed, not what is computed";
constexpr std::string_view kRanks = "how ranks share the state and its sums: parallel.shard";
constexpr std::string_view kHeld = "memory only";

constexpr TreeRule kJsonRules[] = {
    {"train_batch_size", kNoResult, kByFlags},
    {"train_micro_batch_size_per_gpu", kNoResult, kByFlags},
    {"gradient_accumulation_steps", kNoResult, kByFlags},
    {"bf16.*", kNoResult, kByFlags},
    {"fp16.*", kNoResult, "without --fp16 it has no effect there, or nothing depends on it"},
    {"data_types.*", kNoResult, "gradients are always summed in f32 here"},
    {"prescale_gradients", kNoResult, "gradients are always summed in f32 here"},
    {"gradient_predivide_factor", kNoResult, "gradients are always summed in f32 here"},
    {"fp32_allreduce", kNoResult, "gradients are always summed in f32 here"},
    {"communication_data_type", kNoResult, "gradients are always summed in f32 here"},
    {"zero_optimization.*", kNoResult, kRanks},
    {"zero_allow_untested_optimizer", kNoResult, kRanks},
    {"zero_force_ds_cpu_optimizer", kNoResult, kRanks},
    {"activation_checkpointing.*", kNoResult, kHeld},
    {"aio.*", kNoResult, kHeld},
    {"checkpoint.*", kNoResult, "any layout loads what any other saved"},
    {"steps_per_print", kNoResult, kPrinted},
    {"wall_clock_breakdown", kNoResult, kPrinted},
    {"memory_breakdown", kNoResult, kPrinted},
    {"dump_state", kNoResult, kPrinted},
    {"comms_logger.*", kNoResult, kPrinted},
    {"flops_profiler.*", kNoResult, kPrinted},
    {"tensorboard.*", kNoResult, kPrinted},
    {"wandb.*", kNoResult, kPrinted},
    {"curriculum_learning.*", kNoResult, "of curriculum_learning.enabled alone"},
    {"data_efficiency.*", kNoResult, "of data_efficiency.enabled alone"},
};

// DeepSpeed's engine clips and scales by its own settings, whatever the flags beside them are.
void convert_json(const MegatronScript& script, Tree& tree) {
  Draft& draft = script.draft;
  draft.set("train.clip", tree.text("gradient_clipping", "0"),
            tree.given("gradient_clipping")
                ? tree.origin("gradient_clipping")
                : Origin{"gradient_clipping is not in DeepSpeed's JSON: nothing is clipped there",
                         script.flags.origin("deepspeed-config").place});
  if (script.flags.given("fp16") && tree.yes("fp16.enabled", false)) {
    const double fixed = tree.number("fp16.loss_scale", 0);
    const std::string root = "train.loss_scale.";
    const Origin from =
        fixed > 0 ? tree.origin("fp16.loss_scale") : tree.origin("fp16.initial_scale_power", "16");
    const double first = fixed > 0 ? fixed : std::exp2(tree.number("fp16.initial_scale_power", 16));
    draft.set(root + "initial", number_text(first), from);
    draft.set(root + "least",
              fixed > 0 ? number_text(fixed) : tree.text("fp16.min_loss_scale", "1"),
              fixed > 0 ? from : tree.origin("fp16.min_loss_scale", "1"));
    draft.set(root + "window",
              fixed > 0 ? "1000000000" : tree.text("fp16.loss_scale_window", "1000"),
              fixed > 0 ? from : tree.origin("fp16.loss_scale_window", "1000"));
    if (fixed <= 0) {
      draft.set(root + "hysteresis", tree.text("fp16.hysteresis", "2"),
                tree.origin("fp16.hysteresis", "2"));
    }
  }
  for (const auto& [section, why] :
       {std::pair{"curriculum_learning", "rows that grow longer in training are not supported"},
        {"data_efficiency", "an order of samples, or layers that skip tokens, of its own"}}) {
    const std::string enabled = std::string(section) + ".enabled";
    if (!tree.given(enabled)) continue;
    if (tree.yes(enabled, false)) draft.refuse(tree.origin(enabled), why);
  }
}

}  // namespace

void convert_deepspeed_json(const MegatronScript& script, const std::vector<ShellWord>& json,
                            const std::string& file) {
  if (!script.flags.given("deepspeed-config")) return;
  const Origin from = script.flags.origin("deepspeed-config");
  constexpr std::string_view kOutside =
      "its JSON is not read, as the script does not hold it: gradient_clipping and fp16 in it "
      "count "
      "there before the flags (train.clip, train.loss_scale), and curriculum_learning is not "
      "supported";
  if (json.size() != 1) return script.draft.leave_out(from, kOutside);
  try {
    const Yaml root = parse_json(json[0].text, file + ':' + std::to_string(json[0].line));
    Tree tree(root, script.draft);
    convert_json(script, tree);
    tree.settle(kJsonRules);
    script.draft.ignore(from, "its JSON is read where the script writes it");
  } catch (const Error& error) {
    script.draft.leave_out(from, "its JSON cannot be read: " + std::string(error.what()));
  }
}

}  // namespace troupe
