// Other trainers' settings as a recipe of ours: Megatron-LM's flags (a launch script or a list of
// arguments), LLM-Foundry's YAML, torchtitan's TOML, MegaBlocks' Arguments. Nothing is dropped in
// silence: each setting that was given is mapped, ignored because it changes no result, deferred
// because it lays the run out over ranks of a kind that there is not yet, or refused.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "troupe/core/text/text.h"

namespace troupe {

struct Recipe;  // recipe.h

enum class ForeignKind { kAuto, kMegatron, kFoundry, kTorchtitan, kMegaBlocks };
constexpr auto names_of(ForeignKind) {
  return std::array{Named{"auto", ForeignKind::kAuto}, Named{"megatron", ForeignKind::kMegatron},
                    Named{"foundry", ForeignKind::kFoundry},
                    Named{"torchtitan", ForeignKind::kTorchtitan},
                    Named{"megablocks", ForeignKind::kMegaBlocks}};
}

struct Conversion {
  // YAML; each line ends in the setting that it is from. All texts are single lines.
  std::string recipe;
  std::vector<std::string> mapped = {};    // "--num-layers 32 -> model.layers: 32"
  std::vector<std::string> ignored = {};   // "--use-flash-attn: speed only"
  std::vector<std::string> deferred = {};  // "--tensor-model-parallel-size 4: ..."
  std::vector<std::string> refused = {};   // "run.sh:12: E2003 --foo: ..."
  std::vector<std::string> missing = {};   // what has to be said before the recipe runs
  std::vector<std::string> notes = {};     // what is as it was there, and may not be what was meant
  // What `check` finds wrong with the recipe as it is written, but for what is missing.
  std::vector<std::string> faults = {};
  bool whole = true;                // false: a layer's settings, and no run's
  std::set<std::string> open = {};  // keys that are to be filled in
  bool waits = false;               // more depends on variables than single keys
  // The recipe as it reads back, with stand-ins for what is open; null: it has faults, or is no
  // run's.
  std::shared_ptr<const Recipe> checked = {};
};

// Of a text that is none of these, and of another program's (unread_format), E2005. `file` is for
// messages, and for what a mcli's command launches, which is looked for beside it; `variables` are what a script
// gets from outside, those of its command line by their numbers ("1").
Conversion convert_recipe(const std::string& text, const std::string& file, ForeignKind kind,
                          const std::map<std::string, std::string>& variables = {});

// Lines of `check`: those that name what is still to be filled in are no faults yet.
void add_faults(Conversion& conversion, const std::vector<std::string>& lines);

// The file to write: comments that say what the recipe does not have, then the recipe.
std::string recipe_file(const Conversion& conversion);

// What `auto` takes the text for: YAML with a kind's own names, with none of them kAuto; a Python call
// Arguments(...); TOML, lines "[name]" by themselves; else a script.
ForeignKind foreign_kind(const std::string& text);

}  // namespace troupe
