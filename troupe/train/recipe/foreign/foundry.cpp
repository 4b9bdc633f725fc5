#include "troupe/train/recipe/foreign/foundry.h"

#include "troupe/train/recipe/foreign/foundry_parts.h"
#include "troupe/train/recipe/foreign/mcli.h"

namespace troupe {

void convert_foundry(const std::string& text, const std::string& file, Draft& draft) {
  Tree tree(launched_settings(parse_yaml(text, file), file, draft), draft);
  FoundrySettings settings{draft, tree};
  const std::string name = tree.text("model.name", "mpt_causal_lm");
  if (name == "hf_causal_lm") {
    convert_foundry_published(settings);
  } else if (name == "mpt_causal_lm") {
    convert_foundry_model(settings);
  } else {
    return draft.refuse(tree.origin("model.name"), "mpt_causal_lm and hf_causal_lm are supported");
  }
  convert_foundry_training(settings);
  convert_foundry_parallel(settings);
  convert_foundry_loss_mean(settings);
  convert_foundry_run(settings);
  tree.settle(foundry_rules());
  draft.need("train.optimizer.lr", "optimizer.lr is not given");
  draft.need("train.global_batch", "global_train_batch_size is not given");
  if (!tree.given("train_loader.dataset.hf_name")) {
    draft.need("data.train", "train_loader.dataset names no data");
  }
  draft.need("checkpoint.dir", "neither save_folder nor run_name is given: the run's folder");
}

}  // namespace troupe
