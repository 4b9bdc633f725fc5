#include "apps/models/export_run.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <set>

#include "apps/models/run_adapters.h"
#include "troupe/checkpoint/files/names.h"
#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/core/file/file.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/nn/model/model.h"
#include "troupe/train/recipe/recipe.h"
#include "troupe/train/run/kept_tokenizer.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;
using Json = nlohmann::ordered_json;

// tokenizer_config.json: what readers of tokenizer.json need besides it.
std::string tokenizer_config(const Tokenizer& tokenizer, const ModelConfig& model) {
  const SpecialIds special = tokenizer.special();
  Json out = {{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"model_max_length", model.max_positions},
              {"clean_up_tokenization_spaces", false}};
  const auto add = [&](const char* name, TokenId id) {
    if (id >= 0) out[name] = tokenizer.token(id);
  };
  add("bos_token", special.bos);
  add("eos_token", special.eos);
  add("pad_token", special.pad);
  add("unk_token", special.unk);
  return out.dump(2) + '\n';
}

void add_tokenizer(const std::string& name, ExportSource& out, const Log& log) {
  if (name.empty()) return log.warning("the recipe names no tokenizer: the folder has none");
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(name);
  if (tokenizer->kind() != "tokenizer.json" && tokenizer->kind() != "sentencepiece") {
    return log.warning("tokenizer " + name + " (" + std::string(tokenizer->kind()) +
                       ") is no file that a model's folder can hold: the folder has none");
  }
  // A file with the usual name has companions in its folder.
  const stdfs::path file(name);
  const bool usual = file.filename() == "tokenizer.json" || file.filename() == "tokenizer.model";
  out.tokenizer = !usual ? name : file.has_parent_path() ? file.parent_path().string() : ".";
  if (tokenizer->kind() == "tokenizer.json") {
    out.files.emplace_back("tokenizer_config.json", tokenizer_config(*tokenizer, out.model));
  }
  Json ids = Json::object();
  const SpecialIds special = tokenizer->special();
  if (special.bos >= 0) ids["bos_token_id"] = special.bos;
  if (special.eos >= 0) ids["eos_token_id"] = special.eos;
  if (special.pad >= 0) ids["pad_token_id"] = special.pad;
  out.config.passed = ids.dump();
}

// Every tensor of the model has a place in their files, or is state that the model's mathematics
// does not read.
void account(ExportSource& out) {
  std::set<std::string> table, state;
  for (const HfTensor& t : hf_names(*out.config.family, out.config.model)) table.insert(t.name);
  build_model(out.model)->for_each_param(-1, [&](const std::string& name, const Param& p) {
    if (p.group == Group::kState) state.insert(name);
  });
  const CheckpointReader reader(out.checkpoint);
  std::string faults;
  constexpr std::string_view kModel = "model.";
  for (const auto& [name, tensor] : reader.tensors()) {
    if (!name.starts_with(kModel) || table.contains(name.substr(kModel.size()))) continue;
    if (is_adapter(name)) {
      ++out.adapters;
      continue;
    }
    if (state.contains(name.substr(kModel.size())) || matches_any({kFp8HistoryNames}, name)) {
      out.left_out.push_back(name);
    } else {
      faults += "\n  no place for " + name + ' ' + to_text(tensor.global);
    }
  }
  for (const std::string& name : table) {
    if (reader.find("model." + name) == nullptr) faults += "\n  missing: model." + name;
  }
  if (!faults.empty()) {
    fail(Code::kStateMismatch, out.checkpoint, "does not fit the family",
         std::string(out.config.family->model_type), faults);
  }
}

// RUN/hf of the run that was imported, behind runs that began from one another; empty: none.
std::string imported_folder(std::string init_from) {
  constexpr int kMostRuns = 16;
  for (int i = 0; i < kMostRuns && !init_from.empty(); ++i) {
    const std::string run = run_path(init_from).run;
    if (is_there(run + "/hf/config.json")) return run + "/hf";
    if (!is_there(run + "/recipe.yaml")) break;
    Sources sources;
    init_from = load_recipe(run + "/recipe.yaml", {}, sources).checkpoint.init_from;
  }
  return {};
}

// What the model was imported with that the run's adapters were begun from: false where it was not.
bool take_base(const Recipe& recipe, ExportSource& out) {
  const std::string folder = imported_folder(recipe.checkpoint.init_from);
  if (folder.empty()) return false;
  out.config = read_hf_config(folder);
  out.config.model = without_adapters(recipe.model);
  out.tokenizer = folder;
  return true;
}

}  // namespace

ExportSource export_source(const std::string& path, const Log& log) {
  ExportSource out;
  const RunPath place = run_path(path);
  const std::string& run = place.run;
  out.checkpoint = find_step(place).folder;
  if (is_there(run + "/hf/config.json")) {
    out.config = read_hf_config(run + "/hf");
    out.model = out.config.model;
    out.tokenizer = run + "/hf";
  } else {
    Sources sources;
    const Recipe recipe = load_recipe(run + "/recipe.yaml", {}, sources);
    out.model = recipe.model;
    const ModelConfig base = without_adapters(recipe.model);
    if (has_adapters(recipe.model) && take_base(recipe, out)) {
      account(out);
      return out;
    }
    out.config = hf_config_of(base);
    add_tokenizer(run_tokenizer(run, recipe.data.tokenizer), out, log);
  }
  account(out);
  return out;
}

}  // namespace troupe
