// The parts of the reader of LLM-Foundry's YAML, each for one subject. A part settles the keys that
// it asks for; foundry_rules() have what becomes of the others.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "troupe/train/recipe/foreign/draft.h"
#include "troupe/train/recipe/foreign/tree.h"

namespace troupe {

// A file's keys and the draft that they go into, with the questions that several parts ask.
struct FoundrySettings {
  Draft& draft;
  Tree& tree;

  void field(const std::string& path, const std::string& name, const std::string& otherwise);
  // A key with a default there that is not ours: sets the field where the key is not given.
  void with_default(const std::string& path, const std::string& name, const std::string& otherwise);
  int64_t sequence() { return tree.whole("max_seq_len", tree.whole("model.max_seq_len", 2048)); }
  // A time of theirs, "4800ba", as a span of ours; empty, and refused, where there is none.
  std::string span(const std::string& name);
  bool in_epochs(const std::string& name);
};

// A part: the settings, and in short what they are asked most.
class FoundryPart {
 public:
  explicit FoundryPart(FoundrySettings& settings)
      : settings_(settings), draft_(settings.draft), tree_(settings.tree) {}

 protected:
  FoundrySettings& settings_;
  Draft& draft_;
  Tree& tree_;
};

// A model of LLM-Foundry's own: sizes, norms, attention, initial values; dense layers or experts.
void convert_foundry_model(FoundrySettings& settings);
// A model of Hugging Face's hub: the preset whose name is in its own, and its weights by import.
void convert_foundry_published(FoundrySettings& settings);
// The run's length and batch, the optimizer, the learning rate; precision, clip and seed.
void convert_foundry_training(FoundrySettings& settings);
// Ranks that share matrices, the state that all share, recomputation, how long a rank waits.
void convert_foundry_parallel(FoundrySettings& settings);
// What the loss of a step is the mean of.
void convert_foundry_loss_mean(FoundrySettings& settings);
// Loggers, data, checkpoints, evaluation.
void convert_foundry_run(FoundrySettings& settings);

std::span<const TreeRule> foundry_rules();
// Under fsdp_config, and under parallelism_config.fsdp: paths are from there.
std::span<const TreeRule> foundry_shard_rules();

}  // namespace troupe
