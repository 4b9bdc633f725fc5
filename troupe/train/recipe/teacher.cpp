#include "troupe/train/recipe/teacher.h"

#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/checkpoint/hf/hf_config.h"
#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

ModelConfig model_of_run(const std::string& path) {
  Sources sources;
  return load_recipe(run_path(path).run + "/recipe.yaml", {}, sources).model;
}

}  // namespace

bool is_hub_folder(const std::string& path) {
  return run_path(path).step.empty() && is_there(path + "/config.json") && steps_in(path).empty();
}

ModelConfig teacher_model(const Recipe& r) {
  TROUPE_CHECK(r.train.teacher, "the recipe has no teacher");
  const std::string &path = r.train.teacher->path, place = "train.teacher.path " + path;
  if (!is_there(path)) {
    fail(Code::kNoCheckpoint, place,
         "is not there: name a run's folder, one of its steps, or a folder with config.json and "
         "safetensors");
  }
  ModelConfig out = is_hub_folder(path) ? read_hf_config(path).model : model_of_run(path);
  if (out.vocab != r.model.vocab) {
    fail(Code::kBadValue, place, "has a vocabulary of", out.vocab, "words, and model.vocab is",
         std::to_string(r.model.vocab) +
             ": words are compared one by one; take a teacher of the same tokenizer");
  }
  if (out.max_positions < r.data.sequence) {
    fail(Code::kBadValue, place, "has", out.max_positions, "positions, and data.sequence is",
         std::to_string(r.data.sequence) +
             ": shorten the rows, or take a teacher that reads them whole");
  }
  return out;
}

}  // namespace troupe
