// Scripts of models that are no decoders of text.
#include <algorithm>
#include <span>
#include <vector>

#include "troupe/train/recipe/foreign/megatron_parts.h"

namespace troupe {
namespace {

struct OtherModel {
  std::string_view what;
  std::span<const std::string_view> programs;  // parts of their names
  std::span<const std::string_view> flags;     // that begin so
};

constexpr std::string_view kStatePrograms[] = {"pretrain_mamba", "pretrain_hybrid"};
constexpr std::string_view kStateFlags[] = {"mamba-", "hybrid-", "is-hybrid-model"};
constexpr std::string_view kLinearFlags[] = {"linear-attention-", "linear-conv-",
                                             "linear-key-",       "linear-value-",
                                             "linear-num-",       "experimental-attention-variant"};
constexpr std::string_view kVisionPrograms[] = {"vision", "vlm", "llava", "multimodal/", "mimo/"};
constexpr std::string_view kVisionFlags[] = {
    "vision-", "disable-vision-", "image-", "img-",     "patch-size", "patch-dim", "mrope-section",
    "mm-",     "tune-mm-",        "class-", "num-tiles"};
constexpr std::string_view kEncoderPrograms[] = {"bert", "_t5", "_ict", "retro", "biencoder"};
constexpr std::string_view kEncoderFlags[] = {"decoder-seq-length",
                                              "decoder-num-layers",
                                              "short-seq-prob",
                                              "mask-prob",
                                              "bert-",
                                              "retro-",
                                              "position-encoding-2d",
                                              "retriever-",
                                              "titles-data-path",
                                              "source-seq-len",
                                              "target-seq-len"};
constexpr std::string_view kTunePrograms[] = {"tasks/main"};
constexpr std::string_view kTuneFlags[] = {"task", "train-data", "valid-data", "keep-last",
                                           "epochs"};
constexpr std::string_view kStudentFlags[] = {"mos",
                                              "kd",
                                              "kd-",
                                              "load-teacher",
                                              "num-layers-teacher",
                                              "num-experts-teacher",
                                              "hidden-size-teacher",
                                              "num-attention-heads-teacher"};

constexpr OtherModel kOthers[] = {
    {"a model with state space layers (Mamba); layers of attention alone are supported",
     kStatePrograms, kStateFlags},
    {"a model with linear or sparse attention; softmax attention alone is supported",
     {},
     kLinearFlags},
    {"a model that sees images or hears sound; decoders of text are supported", kVisionPrograms,
     kVisionFlags},
    {"a model with an encoder (BERT, T5, a retriever); decoders of text are supported",
     kEncoderPrograms, kEncoderFlags},
    {"a task's own training, in epochs over its own files; `troupe data build --format chat` "
     "makes token files of questions and answers",
     kTunePrograms, kTuneFlags},
    {"distillation: a teacher's scores are in no loss here", {}, kStudentFlags},
};

// A prefix where it ends in a dash, else the whole name.
bool fits(std::string_view flag, std::string_view form) {
  return form.ends_with('-') ? flag.starts_with(form) : flag == form;
}

}  // namespace

void refuse_other_models(const MegatronScript& script) {
  const auto base = script.program.rfind('/');
  const std::string name = base == std::string::npos ? script.program : script.program.substr(base);
  for (const OtherModel& other : kOthers) {
    const bool program = std::ranges::any_of(other.programs, [&](std::string_view part) {
      return (part.find('/') == std::string_view::npos ? name : script.program).find(part) !=
             std::string::npos;
    });
    std::vector<Flags::Flag> of_it;
    for (const Flags::Flag& flag : script.flags.unused()) {
      const auto is_one = [&](std::string_view form) { return fits(flag.name, form); };
      if (std::ranges::any_of(other.flags, is_one)) of_it.push_back(flag);
    }
    if (!program && of_it.empty()) continue;
    const Origin origin =
        of_it.empty() ? Origin{script.program, ""} : script.flags.origin_of(of_it[0]);
    const std::string more =
        of_it.size() > 1
            ? ", as " + to_text(static_cast<int64_t>(of_it.size() - 1)) + " more of its flags say"
            : "";
    script.draft.refuse(origin, "is of " + std::string(other.what) + more);
    for (const Flags::Flag& flag : of_it) script.flags.given(flag.name);
  }
}

}  // namespace troupe
