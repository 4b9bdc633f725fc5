#include "troupe/train/recipe/preference.h"

#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

struct Refused {
  bool here;
  const char *path, *why;
};

std::vector<Refused> refused_model(const Recipe& r) {
  return {
      {!r.model.lora.on(), "model.lora",
       "is off: the reference of train.loss dpo is the model without its adapters; set "
       "model.lora.rank"},
      {r.model.mtp.depth > 0, "model.mtp.depth",
       "trains modules by cross-entropy, which train.loss dpo has none of: set it to 0"},
      {r.model.z_loss != 0, "model.z_loss",
       "is a part of cross-entropy, and train.loss is dpo: set it to 0"},
      {r.train.teacher.has_value(), "train.teacher",
       "is a part of cross-entropy, and train.loss is dpo: set it to null"},
  };
}

std::vector<Refused> refused_data(const Recipe& r) {
  return {
      {!r.data.split.empty(), "data.split",
       "would cut preference pairs: set it to \"\" and name pairs in data.valid (data build "
       "--valid)"},
      {r.data.order == DataOrder::kMegatron, "data.order",
       "megatron cuts rows anywhere, and a row of train.loss dpo is one answer: take ours"},
      {r.data.packing != PackingMode::kConcat, "data.packing",
       "best_fit joins documents, and a row of train.loss dpo is one answer: take concat"},
      {r.data.documents != Documents::kNone, "data.documents",
       "cuts rows into documents, and a row of train.loss dpo is one: take none"},
      {r.data.fim.has_value(), "data.fim",
       "rearranges documents, and train.loss dpo compares answers as they are: set it to null"},
  };
}

std::vector<Refused> refused_sizes(const Recipe& r) {
  constexpr const char* kEven =
      "must be even with train.loss dpo: the two rows of a pair are computed together";
  const int64_t batch = batch_of(r);
  return {
      {batch % 2 != 0,
       r.train.global_batch > 0 ? "train.global_batch" : "train.global_batch_tokens",
       "has an odd number of rows, and a preference pair of train.loss dpo has two"},
      {r.train.micro_batch.value_or(0) % 2 != 0, "train.micro_batch", kEven},
      {!divides_ramp(r.train.batch_ramp, 2), "train.batch_ramp", kEven},
      {r.eval.batch % 2 != 0, "eval.batch", kEven},
  };
}

std::vector<Refused> refused_options(const Recipe& r) {
  const PreferenceOptions& o = r.train.dpo;
  return {
      {!(o.beta > 0), "train.dpo.beta", "must be above 0"},
      {!(o.label_smoothing >= 0 && o.label_smoothing < 0.5), "train.dpo.label_smoothing",
       "must be from 0 to below 0.5: at 0.5 both answers are as good"},
      {o.label_smoothing != 0 && o.loss != PreferenceForm::kSigmoid, "train.dpo.label_smoothing",
       "is of loss sigmoid alone: set it to 0"},
  };
}

}  // namespace

int64_t rows_together(const Recipe& r) {
  return r.train.loss == LossKind::kDpo ? 2 : 1;
}

std::vector<std::pair<std::string, std::string>> preference_faults(const Recipe& r) {
  std::vector<std::pair<std::string, std::string>> out;
  if (r.train.loss != LossKind::kDpo) {
    if (r.train.dpo != PreferenceOptions{}) {
      out.emplace_back("train.dpo", "is of train.loss dpo alone: set that, or leave this out");
    }
    return out;
  }
  for (const auto& refused :
       {refused_model(r), refused_data(r), refused_sizes(r), refused_options(r)}) {
    for (const auto& [here, path, why] : refused) {
      if (here) out.emplace_back(path, why);
    }
  }
  return out;
}

}  // namespace troupe
