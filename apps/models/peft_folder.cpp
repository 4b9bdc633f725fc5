#include "apps/models/peft_folder.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "apps/models/peft_rows.h"
#include "troupe/checkpoint/files/safetensors.h"
#include "troupe/checkpoint/state/tensor_element.h"
#include "troupe/core/check.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

constexpr const char* kInstead =
    "`troupe export RUN FOLDER --merge` writes the whole model with the adapters in it";

// The factors of one tensor of theirs.
struct AdaptedTensor {
  PieceRows form;
  bool parameter = false;
  std::string ours;              // of a matrix: the weight that it is made of
  int64_t filled = 0;            // rows of all experts
  std::vector<at::Tensor> a, b;  // of each expert: [r, in], [out, r]
  at::Tensor m;                  // [out], of DoRA, which experts do not have
};

// "mlp.gate.weight": what the same tensor of any layer ends with.
std::string without_layer(const std::string& name) {
  constexpr std::string_view kLayers = ".layers.";
  const size_t at = name.find(kLayers);
  if (at == std::string::npos) return name;
  const size_t dot = name.find('.', at + kLayers.size());
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

class PeftAdapter {
 public:
  PeftAdapter(const RunAdapters& adapters, const HfConfig& config) {
    if (!config.factors.empty()) {
      fail(Code::kBadValue, "--adapter", "the family", config.family->model_type,
           "has factors that the import multiplied into the weights, so that an adapter of them is",
           "none of the base; `troupe export RUN FOLDER --merge` writes the whole model");
    }
    for (const HfTensor& ours : hf_names(*config.family, config.model, /*fused=*/true)) {
      const auto factors = adapters.of(ours.name);
      if (!factors) continue;
      for (const HfPiece& piece : ours.pieces) add(ours, piece, *factors);
    }
    for (const auto& [name, t] : targets_) {
      if (t.filled != t.form.out * t.form.experts) {
        fail(Code::kBadValue, "--adapter", "a part of", name,
             "alone has an adapter, and PEFT's are",
             "of whole matrices; `troupe export RUN FOLDER --merge` writes the whole model");
      }
    }
  }

  // All tensors of the file.
  std::map<std::string, at::Tensor> tensors(PeftVersion version) const {
    std::map<std::string, int64_t> parameters;  // of each module
    for (const auto& [name, t] : targets_) parameters[split_name(name).module] += t.parameter;
    std::map<std::string, at::Tensor> out;
    for (const std::string& name : order_) {
      const AdaptedTensor& t = targets_.at(name);
      const std::string module = split_name(name).module;
      std::string prefix = "base_model.model." + module + '.';
      if (t.parameter) {  // the first is wrapped first: the last stands outside
        for (int64_t i = --parameters.at(module); i > 0; --i) prefix += "base_layer.";
      }
      const auto [a, b] = joined(t, version);
      out[prefix + "lora_A.weight"] = a;
      out[prefix + "lora_B.weight"] = b;
      if (t.m.defined()) out[prefix + "lora_magnitude_vector"] = t.m;
    }
    return out;
  }

  PeftWritten targets() const {
    PeftWritten out;
    for (const std::string& name : order_) {
      const bool parameter = targets_.at(name).parameter;
      auto& into = parameter ? out.parameters : out.modules;
      const std::string target = without_layer(parameter ? name : split_name(name).module);
      if (std::ranges::find(into, target) == into.end()) into.push_back(target);
    }
    return out;
  }

 private:
  void add(const HfTensor& ours, const HfPiece& piece, const WeightFactors& factors) {
    const PieceRows rows = rows_of(piece, ours.columns, kInstead);
    const auto [at, added] = targets_.try_emplace(piece.name);
    AdaptedTensor& t = at->second;
    if (added) {
      order_.push_back(piece.name);
      t.form = rows;
      t.ours = ours.name;
      t.parameter = is_parameter(piece, ours);
      t.a.resize(static_cast<size_t>(rows.experts));
      t.b.resize(static_cast<size_t>(rows.experts));
    } else if (rows.experts == 1 && t.ours != ours.name) {
      refuse_piece(piece,
                   "joins " + t.ours + " and " + ours.name +
                       ", whose adapters are apart: PEFT has one for the whole",
                   kInstead);
    }
    const auto e = static_cast<size_t>(rows.expert);
    if (!t.b[e].defined()) {
      t.a[e] = factors.a;
      t.b[e] = at::zeros({rows.out, factors.a.size(0)}, factors.a.options());
      if (factors.m.defined()) t.m = at::zeros({rows.out}, factors.m.options());
    }
    const auto put = [&](const at::Tensor& into, const at::Tensor& from) {
      into.slice(0, rows.first, rows.first + (piece.rows - 1) * rows.step + 1, rows.step)
          .copy_(from.narrow(0, piece.row, piece.rows));
    };
    put(t.b[e], factors.b);
    if (t.m.defined()) put(t.m, factors.m);
    t.filled += piece.rows;
  }

  static std::pair<at::Tensor, at::Tensor> joined(const AdaptedTensor& t, PeftVersion version) {
    if (t.form.experts == 1) return {t.a[0].contiguous(), t.b[0]};
    const bool turned = version == PeftVersion::k0_18 && !t.form.in_first;
    const int64_t E = t.form.experts, r = t.a[0].size(0);
    const int64_t in = turned ? t.form.out : t.form.in, rows = turned ? t.form.in : t.form.out;
    at::Tensor a = at::zeros({E, r, in}, t.a[0].options());
    at::Tensor b = at::zeros({rows, r, E}, t.a[0].options());
    for (int64_t e = 0; e < E; ++e) {
      const at::Tensor &own_a = t.a[static_cast<size_t>(e)], &own_b = t.b[static_cast<size_t>(e)];
      a.select(0, e).copy_(turned ? own_b.t() : own_a);
      b.select(2, e).copy_(turned ? own_a.t() : own_b);
    }
    return {a.view({E * r, in}), b.view({rows, r * E})};
  }

  std::map<std::string, AdaptedTensor> targets_;  // by their name
  std::vector<std::string> order_;                // of the names, as modules list their parameters
};

// PEFT takes no dropout where it adapts a parameter by itself (experts, the router).
double written_dropout(const LoraConfig& config, const PeftWritten& targets) {
  return targets.parameters.empty() ? config.dropout : 0;
}

std::string config_text(const LoraConfig& config, const PeftWritten& targets,
                        const PeftFolder& to) {
  nlohmann::ordered_json out = {{"peft_type", "LORA"},
                                {"task_type", "CAUSAL_LM"},
                                {"peft_version", std::string(to_text(to.version)) + ".0"},
                                {"base_model_name_or_path", nullptr},
                                {"r", config.rank},
                                {"lora_alpha", config.alpha},
                                {"lora_dropout", written_dropout(config, targets)},
                                {"use_rslora", config.rslora},
                                {"use_dora", config.dora},
                                {"bias", "none"},
                                {"fan_in_fan_out", false},
                                {"init_lora_weights", true},
                                {"inference_mode", true},
                                {"target_modules", targets.modules},
                                {"target_parameters", targets.parameters}};
  if (!to.base.empty()) out["base_model_name_or_path"] = to.base;
  return out.dump(2) + '\n';
}

void write_tensors(Fs& fs, const std::string& path,
                   const std::map<std::string, at::Tensor>& tensors) {
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, Element::kF32, tensor.sizes().vec()});
  }
  NewFile file(fs, path);
  write_safetensors(file, layout_safetensors(entries),
                    [&](const SafetensorsEntry& entry, const WriteBytes& write) {
                      write(bytes_of(tensors.at(entry.name).contiguous()));
                    });
  file.finish();
}

}  // namespace

PeftWritten write_peft(const RunAdapters& adapters, const HfConfig& config, const PeftFolder& to,
                       Fs& fs) {
  std::error_code error;
  const bool there = stdfs::exists(stdfs::symlink_status(to.folder, error));
  if (there && !to.force) {
    fail(Code::kFileFailed, to.folder, "is there already; --force replaces it");
  }
  const PeftAdapter adapter(adapters, config);
  const std::map<std::string, at::Tensor> tensors = adapter.tensors(to.version);
  PeftWritten out = adapter.targets();
  out.tensors = std::ssize(tensors);
  const std::string staging = make_staging_directory(fs, to.folder);
  try {
    write_tensors(fs, staging + "/adapter_model.safetensors", tensors);
    NewFile text(fs, staging + "/adapter_config.json");
    text.write(config_text(adapters.config(), out, to));
    text.finish();
    there ? replace_directory(fs, staging, to.folder) : publish_directory(fs, staging, to.folder);
  } catch (...) {
    if (stdfs::exists(staging, error)) remove_tree(fs, staging);
    throw;
  }
  return out;
}

}  // namespace troupe
