// troupe plan --ranks: a recipe on ranks that are not there.
#pragma once

#include <CLI/App.hpp>

#include <cstdint>
#include <string>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

struct LayoutOptions {
  int64_t ranks = 0;  // 0: not asked for
  std::string machine, bench, picture;
  bool scaling = false, choose = false, list = false, json = false, measure = false;

  void add_to(CLI::App& verb);
};

// Host memory of a rank's masters and optimizer state (train.offload_state), and how long its update
// copies them at `rate` bytes/s each way. Nothing where there are none.
void print_host_state(double bytes, double seconds, double rate, bool measured);

// Whether a rank's memory fits into `available` bytes; 0: that of the machine file.
bool plan_layout(const LayoutOptions& options, const Recipe& recipe, double available);

}  // namespace troupe
