#include "troupe/train/open_data.h"

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/data/tokenizer/tokenizers.h"

namespace troupe {

namespace {

OpenedData open_all(const Recipe& recipe, const RunPlan& plan, const Log& log,
                    const StopQuestion& stop) {
  OpenedData out;
  DataNeeds needs{.vocab = recipe.model.vocab,
                  .seed = recipe.train.seed,
                  .batch = plan.batch,
                  .samples = plan.run.samples,
                  .log = log,
                  .stop = stop};
  if (!recipe.data.tokenizer.empty()) {
    out.tokenizer = open_tokenizer(recipe.data.tokenizer);
    require_fits(*out.tokenizer, recipe.model.vocab, recipe.data.tokenizer);
    needs.tokenizer = hex(out.tokenizer->fingerprint());
    if (recipe.data.tokenizer != "bytes") needs.encoder = out.tokenizer.get();
    if (out.tokenizer->special().eos >= 0) needs.eod = out.tokenizer->special().eos;
  }
  out.data = build(recipe.data, needs);
  return out;
}

}  // namespace

OpenedData open_data(const Recipe& recipe, const Log& log, const StopQuestion& stop) {
  const RunPlan plan = plan_of(recipe);
  OpenedData out = open_all(recipe, plan, log, stop);
  if (out.data.train == nullptr) {
    fail(Code::kBadValue, "data.train", "names no data to train on");
  }
  out.data.train->require(plan.run.samples);
  return out;
}

OpenedData open_valid(Recipe recipe, const Log& log) {
  if (recipe.data.split.empty()) {  // else the validation set is a part of the training files
    recipe.data.train.clear();
    recipe.data.stages.clear();
  }
  return open_all(recipe, plan_of(recipe), log, {});
}

}  // namespace troupe
