// The parts of the reader of torchtitan's TOML, each for one subject. A part settles the keys that
// it asks for; the table of torchtitan.cpp has what becomes of the others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "troupe/train/recipe/foreign/draft.h"
#include "troupe/train/recipe/foreign/tree.h"

namespace troupe {

// A file's keys and the draft that they go into, with the questions that several parts ask.
struct TorchtitanSettings {
  Draft& draft;
  const Yaml& root;  // the file, for lists in lists
  Tree& tree;        // of it
  int64_t layers;    // of the model; 0: not known

  void field(const std::string& path, const std::string& name, const std::string& otherwise);
  void field_if_given(const std::string& path, const std::string& name);
  // A setting whose other values are not supported.
  void only(const std::string& name, bool wanted, std::string_view why);
  // Ranks along an axis, as `parallelism` has them.
  int64_t axis(const std::string& name) { return tree.whole("parallelism." + name, 1); }
};

// A part: the settings, and in short what they are asked most.
class TorchtitanPart {
 public:
  explicit TorchtitanPart(TorchtitanSettings& settings)
      : settings_(settings), draft_(settings.draft), tree_(settings.tree) {}

 protected:
  TorchtitanSettings& settings_;
  Draft& draft_;
  Tree& tree_;
};

// The optimizer, the learning rate, length and batch, precision, seed and data.
void convert_torchtitan_training(TorchtitanSettings& settings);
// Ranks along each axis, the state that they share, stages and their order.
void convert_torchtitan_parallel(TorchtitanSettings& settings);
// Checkpoints, recomputation, logs and validation, limits of time, and what is for tests.
void convert_torchtitan_run(TorchtitanSettings& settings);

}  // namespace troupe
