// The parts of the reader of Megatron-LM's flags, each for one subject. A part settles the flags
// that it asks for; flag_rules.h has what becomes of the others.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/train/recipe/foreign/draft.h"
#include "troupe/train/recipe/foreign/flags.h"
#include "troupe/train/recipe/foreign/shell_words.h"

namespace troupe {

// A script's flags and the draft that they go into, with the questions that several parts ask.
struct MegatronScript {
  Draft& draft;
  Flags& flags;
  std::string program;  // the .py file that the script starts

  // One field out of one flag with a default there.
  void field(const std::string& path, const std::string& flag, const std::string& otherwise) const;
  bool megablocks() const { return flags.given("moe-num-experts"); }  // whose names MoE flags have
  bool deepspeed() const;   // whose gate and experts' flags Megatron-DeepSpeed has
  int64_t experts() const;  // 0: no layer has any
  // Layers as model.moe.layers has them: "[0]*3+[1]*9" of "([0]*3+[1]*9)".
  std::string layer_list(const std::string& flag, const std::string& otherwise) const;
  std::string moe_layers() const;
  // Those of them that are given change no result.
  void ignore_given(std::initializer_list<const char*> names, std::string_view why) const;
};

// A part: the script, and in short what it is asked most.
class MegatronPart {
 public:
  explicit MegatronPart(const MegatronScript& script)
      : script_(script), draft_(script.draft), flags_(script.flags) {}

 protected:
  const MegatronScript& script_;
  Draft& draft_;
  Flags& flags_;
};

// One refusal for each kind of model that there is none of here, by its program and its flags, which
// say nothing more then.
void refuse_other_models(const MegatronScript& script);
// Sizes, norms, vocabulary, dropout; the activation and biases of dense layers and of experts.
void convert_megatron_model(const MegatronScript& script);
// Heads, windows, latents; then the encoding of positions.
void convert_megatron_attention(const MegatronScript& script);
// Experts, their router and their capacity, by either program's names. To be called where there are
// experts.
void convert_megatron_experts(const MegatronScript& script);
// The batch, the run's length, the learning rate, the optimizer, the precision.
void convert_megatron_training(const MegatronScript& script);
// Ranks along each axis and stages; the state that ranks share, and what is computed again.
void convert_megatron_parallel(const MegatronScript& script);
// The JSON that --deepspeed-config names, where the script writes it: loss scales, the clip.
void convert_deepspeed_json(const MegatronScript& script, const std::vector<ShellWord>& json,
                            const std::string& file);
// Data and tokenizer, checkpoints, evaluation, logs, profiles.
void convert_megatron_run(const MegatronScript& script);

}  // namespace troupe
