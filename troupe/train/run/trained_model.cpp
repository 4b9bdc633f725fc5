#include "troupe/train/run/trained_model.h"

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/shell_word.h"
#include "troupe/train/forecast/device.h"
#include "troupe/train/run/kept_tokenizer.h"

namespace troupe {
namespace {

// A Learner needs a batch and a length, which the recipe of an imported model does not have.
// Nothing is trained here.
void set_missing_length(TrainConfig& train) {
  if (train.global_batch == 0 && train.global_batch_tokens.value == 0) train.global_batch = 1;
  if (train.steps == 0 && train.tokens.value == 0) train.steps = 1;
}

}  // namespace

ResumePoint init_point(const std::string& init_from) {
  const std::string place = "checkpoint.init_from " + init_from;
  if (!is_there(init_from)) fail(Code::kNoCheckpoint, place, "is not there");
  if (is_hub_folder(init_from)) {
    const std::string folder = shell_word(init_from);
    fail(Code::kNoCheckpoint, place,
         "is a Hugging Face folder: `troupe import " + folder +
             " RUN`, then name RUN here, with checkpoint.cast: true");
  }
  return find_step(run_path(init_from));
}

Loaded load_weights(Learner& learner, const std::string& folder, LoadOptions options,
                    const Faults& faults, const CheckpointGroup& group) {
  CheckpointState weights;
  learner.checkpoint().add_to(weights, {.weights_alone = true, .to_load = true});
  options.waive_unused.emplace_back("optimizer.*");
  Loaded out = load(folder, weights, options, group, faults);
  learner.checkpoint().loaded(/*weights_alone=*/true);
  return out;
}

TrainedModel open_trained_model(const std::string& path, const std::vector<std::string>& sets) {
  const RunPath place = run_path(path);
  Sources sources;
  const std::string file = place.run + "/recipe.yaml";
  Recipe recipe = load_recipe(file, sets, sources);
  const std::string named = load_recipe(file, {}, sources).data.tokenizer;
  if (recipe.data.tokenizer == named) recipe.data.tokenizer = run_tokenizer(place.run, named);
  const ResumePoint point = find_step(place);
  // Evaluation measures the cross entropy alone.
  recipe.model.z_loss = 0;
  recipe.train.teacher.reset();
  set_missing_length(recipe.train);
  TrainedModel out{.recipe = resolve_alone(recipe),
                   .folder = point.folder,
                   .step = point.manifest.step,
                   .faults = std::make_unique<Faults>(),
                   .learner = nullptr};
  out.learner =
      std::make_unique<Learner>(out.recipe, device_of(out.recipe.run.device), *out.faults);
  // An imported checkpoint has the types of its files.
  load_weights(*out.learner, out.folder, {.cast = true, .base_at = out.recipe.checkpoint.init_from},
               *out.faults);
  return out;
}

}  // namespace troupe
