#include "apps/models/compare_modules.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>

#include "apps/models/sample_ids.h"
#include "troupe/checkpoint/files/safetensors.h"
#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/checkpoint/hf/hf_modules.h"
#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/checkpoint/state/tensor_element.h"
#include "troupe/core/file/file.h"
#include "troupe/nn/model/model.h"
#include "troupe/nn/model/module_outputs.h"
#include "troupe/train/recipe/recipe.h"
#include "troupe/train/run/whole_model.h"

namespace troupe {
namespace {

constexpr const char* kInputIds = "input_ids";

bool is_record(const std::string& path) {
  return path.ends_with(".safetensors");
}

// Where a model is, before its weights are read.
struct ModelPlace {
  std::string path, run = {}, checkpoint = {};
  ModelConfig config = {};
  std::unique_ptr<HfWeights> weights = {};  // null: a run's checkpoint
};

ModelPlace model_place(const std::string& path) {
  ModelPlace out{.path = path};
  if (is_there(path + "/config.json")) {
    out.weights = std::make_unique<HfWeights>(path);
    out.config = out.weights->config().model;
    return out;
  }
  const RunPath place = run_path(path);
  out.run = place.run;
  out.checkpoint = find_step(place).folder;
  Sources sources;
  out.config = load_recipe(place.run + "/recipe.yaml", {}, sources).model;
  return out;
}

HfConfig hub_config(const ModelPlace& place) {
  if (place.weights) return place.weights->config();
  const std::string imported = place.run + "/hf";
  return is_there(imported + "/config.json") ? read_hf_config(imported)
                                             : hf_config_of(place.config);
}

// From our names of modules to those of transformers.
std::map<std::string, std::string> module_names(const ModelPlace& place) {
  const HfConfig config = hub_config(place);
  if (!config.factors.empty()) {
    fail(Code::kBadValue, place.path,
         "has multipliers in config.json, which transformers applies in its modules and Troupe in "
         "the weights: outputs of its modules cannot be compared");
  }
  return hf_modules(hf_names(*config.family, place.config, /*fused=*/true));
}

std::vector<ModuleOutput> outputs_of(const ModelPlace& place, const at::Tensor& ids_BS) {
  const std::unique_ptr<Model> model = place.weights
                                           ? model_of_folder(*place.weights)
                                           : model_of_checkpoint(place.checkpoint, place.config);
  return module_outputs(*model, ids_BS);
}

at::Tensor record_tensor(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  at::Tensor out = at::empty(entry.shape, at::TensorOptions(scalar_of(entry.element)));
  file.read(entry, 0, bytes_of(out));
  return out;
}

at::Tensor ids_of(const SafetensorsFile& file, const ModelConfig& config) {
  const SafetensorsEntry* const entry = file.find(kInputIds);
  if (entry == nullptr) {
    fail(Code::kBadModelFile, file.path(), "has no", kInputIds,
         "and so no outputs of modules: write it with troupe.record_modules, or python -m "
         "troupe.modules");
  }
  const bool whole = entry->element == Element::kI64 || entry->element == Element::kI32;
  if (!whole || entry->shape.size() != 2 || Box::whole(entry->shape).numel() == 0) {
    fail(Code::kBadModelFile, file.path(), kInputIds, "must be whole numbers [B, S]; it is",
         std::string(name_of(entry->element)), to_text(entry->shape));
  }
  at::Tensor ids = record_tensor(file, *entry).to(at::kLong);
  const auto least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
  if (least < 0 || most >= config.vocab) {
    fail(Code::kBadToken, file.path(), kInputIds, "are from", least, "to", most,
         "; the model's vocabulary has", config.vocab, "tokens");
  }
  if (config.positions == PositionForm::kLearned && ids.size(1) > config.max_positions) {
    fail(Code::kBadValue, file.path(), kInputIds, "are rows of", ids.size(1),
         "tokens; the model has positions for", config.max_positions);
  }
  return ids;
}

ModuleDifference module_difference(const std::string& name, const at::Tensor& a,
                                   const at::Tensor& b, double within) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble).reshape(x.sizes());
  const double apart = (x - y).abs().max().item<double>();
  const double largest = y.abs().max().item<double>();
  ModuleDifference out{.name = name, .shape = b.sizes().vec()};
  if (apart == 0) return out;
  out.max_abs = std::isfinite(apart) ? apart : kInfinite;
  out.max_rel = std::isfinite(largest) && largest > 0 ? out.max_abs / largest : kInfinite;
  out.differs = out.max_rel > within;
  return out;
}

// One side by the other's names. `find` gives an output of b, or an undefined tensor.
struct OtherSide {
  std::string path;
  std::function<std::string(const std::string& ours)> name;
  std::function<at::Tensor(const std::string& name)> find;
};

// What a module of b is called that would follow a's last layer: b has more of them if it is there.
std::string next_layer(const OtherSide& b, int64_t layers) {
  const std::string last = b.name("layers." + std::to_string(layers - 1));
  return last.substr(0, last.rfind('.') + 1) + std::to_string(layers);
}

ModuleComparison compare_outputs(const ModelPlace& a, const std::vector<ModuleOutput>& outputs,
                                 const OtherSide& b, double within) {
  ModuleComparison out{.within = within};
  std::string faults;
  for (const ModuleOutput& ours : outputs) {
    const std::string name = b.name(ours.name);
    const at::Tensor theirs = b.find(name);
    if (!theirs.defined()) {
      faults += "\n  missing: " + name;
    } else if (theirs.dim() < 1 || theirs.size(-1) != ours.y.size(1) ||
               theirs.numel() != ours.y.numel()) {
      faults += "\n  " + name + " is " + to_text(theirs.sizes().vec()) + " there and " +
                to_text(ours.y.sizes().vec()) + " in " + a.path;
    } else if (faults.empty()) {
      out.modules.push_back(module_difference(name, ours.y, theirs, within));
    }
  }
  const std::string more = next_layer(b, a.config.layers);
  if (b.find(more).defined()) faults += "\n  not in " + a.path + ": " + more;
  if (!faults.empty()) {
    fail(Code::kStateMismatch, b.path, "does not have the modules of", a.path + faults);
  }
  const auto first = std::ranges::find_if(out.modules, &ModuleDifference::differs);
  if (first != out.modules.end()) out.first = first->name;
  return out;
}

ModuleComparison compare_record(const ModelPlace& a, const std::string& path, double within) {
  const SafetensorsFile file(path);
  const at::Tensor ids_BS = ids_of(file, a.config);
  const std::map<std::string, std::string> names = module_names(a);
  const OtherSide b{.path = path,
                    .name = [&](const std::string& ours) { return names.at(ours); },
                    .find =
                        [&](const std::string& name) {
                          const SafetensorsEntry* const entry = file.find(name);
                          return entry == nullptr ? at::Tensor() : record_tensor(file, *entry);
                        }};
  return compare_outputs(a, outputs_of(a, ids_BS), b, within);
}

ModuleComparison compare_models(const ModelPlace& a, const ModelPlace& b, double within) {
  const at::Tensor ids_BS = sample_ids(std::min(a.config.vocab, b.config.vocab),
                                       std::min(a.config.max_positions, b.config.max_positions));
  std::map<std::string, at::Tensor> theirs;  // of a model that is gone when the other is read
  for (const ModuleOutput& output : outputs_of(b, ids_BS)) theirs[output.name] = output.y;
  const OtherSide other{.path = b.path,
                        .name = [](const std::string& ours) { return ours; },
                        .find =
                            [&](const std::string& name) {
                              const auto at = theirs.find(name);
                              return at == theirs.end() ? at::Tensor() : at->second;
                            }};
  return compare_outputs(a, outputs_of(a, ids_BS), other, within);
}

}  // namespace

ModuleComparison compare_modules(const std::string& a, const std::string& b, double within) {
  if (is_record(a)) {
    fail(Code::kBadValue, a,
         "is a file: first name a run or a model's folder, then the file with the outputs of "
         "modules");
  }
  const ModelPlace ours = model_place(a);
  if (is_record(b)) return compare_record(ours, b, within);
  return compare_models(ours, model_place(b), within);
}

}  // namespace troupe
