#include "troupe/train/run/open_teacher.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/core/check.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/train/run/kept_tokenizer.h"
#include "troupe/train/run/whole_model.h"

namespace troupe {
namespace {

// What the teacher's tokenizer is opened from; empty: it has none.
std::string tokenizer_of(const std::string& path) {
  if (is_hub_folder(path)) {
    const bool there = std::ranges::any_of(
        tokenizer_kinds(), [&](const TokenizerKind& kind) { return kind.fits(path); });
    return there ? path : "";
  }
  const std::string run = run_path(path).run;
  Sources sources;
  return run_tokenizer(run, load_recipe(run + "/recipe.yaml", {}, sources).data.tokenizer);
}

void require_same_tokenizer(const Recipe& r) {
  const std::string &path = r.train.teacher->path, &own = r.data.tokenizer;
  const std::string theirs = tokenizer_of(path);
  if (own.empty() || theirs.empty()) return;
  if (open_tokenizer(own)->fingerprint() == open_tokenizer(theirs)->fingerprint()) return;
  fail(Code::kOtherTokenizer, "train.teacher.path " + path, "has the tokenizer", theirs,
       "and data.tokenizer is",
       own + ": their words have other ids; take a teacher of the same one");
}

}  // namespace

std::string teacher_folder(const Recipe& r) {
  teacher_model(r);
  require_same_tokenizer(r);
  const std::string& path = r.train.teacher->path;
  if (!is_hub_folder(path)) return find_step(run_path(path)).folder;
  const HfWeights all_there(path);
  return path;
}

void open_teacher(const Recipe& r, const std::string& folder, Learner& learner) {
  const at::TensorOptions& options = learner.store().options();
  std::unique_ptr<Model> model = is_hub_folder(folder)
                                     ? model_of_folder(HfWeights(folder), options)
                                     : model_of_checkpoint(folder, teacher_model(r), options);
  learner.learn_from(std::make_unique<const Teacher>(std::move(model), *r.train.teacher));
}

}  // namespace troupe
