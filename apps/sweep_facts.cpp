#include "apps/sweep_facts.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/hash.h"
#include "troupe/core/file/secrets.h"

namespace troupe {
namespace {

std::vector<std::string> lines_of(const Recipe& recipe) {
  std::vector<std::string> out;
  for (const auto& [path, value] : flatten(recipe)) {
    if (path != "checkpoint.dir") out.push_back(without_secrets(path + '=' + value));
  }
  return out;
}

std::string hash_of(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all.append(line).append("\n");
  return hex(hash64(all));
}

std::map<std::string, std::string> by_path(const std::vector<std::string>& lines) {
  std::map<std::string, std::string> out;
  for (const std::string& line : lines) out[line.substr(0, line.find('='))] = line;
  return out;
}

std::string joined_values(const std::vector<SweepAxis>& grid, const std::string& path) {
  const auto found = std::ranges::find(grid, path, &SweepAxis::path);
  if (found == grid.end()) return "one value";
  std::string out;
  for (const std::string& value : found->values) out += (out.empty() ? "" : ",") + value;
  return out;
}

// "train.optimizer.lr: 1e-3,3e-3 there, 1e-3 here": of the grid, then of what all runs have.
std::vector<std::string> differences(const SweepFacts& there, const SweepFacts& here) {
  std::vector<std::string> out;
  const auto differ = [&](const std::string& what, const std::string& a, const std::string& b) {
    if (a != b) out.push_back(what + ": " + a + " there, " + b + " here");
  };
  std::set<std::string> swept;
  for (const auto* grid : {&there.grid, &here.grid}) {
    for (const SweepAxis& axis : *grid) {
      if (!swept.insert(axis.path).second) continue;
      differ("--set " + axis.path, joined_values(there.grid, axis.path),
             joined_values(here.grid, axis.path));
    }
  }
  if (out.empty() && there.grid != here.grid) out.emplace_back("the --set have another order here");
  differ("--sample", std::to_string(there.sample), std::to_string(here.sample));
  differ("--seed", std::to_string(there.seed), std::to_string(here.seed));
  if (there.recipe_hash == here.recipe_hash) return out;
  const auto old = by_path(there.recipe), now = by_path(here.recipe);
  const auto value = [](const std::map<std::string, std::string>& all, const std::string& path) {
    const auto found = all.find(path);
    return found == all.end() ? "nothing" : found->second.substr(path.size() + 1);
  };
  std::set<std::string> paths;
  for (const auto* all : {&old, &now}) {
    for (const auto& [path, line] : *all) paths.insert(path);
  }
  for (const std::string& path : paths) {
    if (!swept.contains(path)) differ(path, value(old, path), value(now, path));
  }
  return out;
}

}  // namespace

void set_recipe(SweepFacts& facts, const Recipe& first) {
  facts.recipe = lines_of(first);
  facts.recipe_hash = hash_of(facts.recipe);
}

void claim_folder(Fs& fs, const std::string& out, const SweepFacts& facts,
                  const std::vector<std::string>& runs) {
  const std::string path = out + "/sweep.json";
  if (is_there(path)) {
    SweepFacts there;
    read_config(parse_json(read_file(path), path), there);
    const std::vector<std::string> differ = differences(there, facts);
    std::string text;
    for (const std::string& line : differ) {
      text += path + ": " + to_text(Code::kBadRunFolder) + ' ' + line + '\n';
    }
    if (differ.empty()) return;
    throw Error(text + out + ": " + to_text(Code::kBadRunFolder) +
                    " has another sweep. Take another --out, or the command that began it",
                Code::kBadRunFolder);
  }
  if (is_there(out + "/exit.json") || is_there(out + "/log.jsonl")) {
    fail(Code::kBadRunFolder, out, "is the folder of a run; a sweep needs one of its own");
  }
  for (const std::string& run : runs) {
    if (!is_there(run)) continue;
    fail(Code::kBadRunFolder, run,
         "is there, and no sweep.json tells which sweep it is of. Take another --out, or move it");
  }
  std::ostringstream text;
  write_json(text, facts);
  publish_file(fs, path, text.str() + '\n');
}

}  // namespace troupe
