#include "apps/models/peft_import.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

#include "apps/models/peft_rows.h"
#include "apps/models/peft_settings.h"
#include "troupe/checkpoint/files/foreign.h"
#include "troupe/checkpoint/files/safetensors.h"
#include "troupe/checkpoint/state/tensor_element.h"
#include "troupe/core/check.h"
#include "troupe/nn/model/model.h"

namespace troupe {
namespace {

constexpr const char* kMergeThere =
    "merge the adapter with PEFT (merge_and_unload) and import the whole model";

struct FactorPair {
  at::Tensor a, b;    // f32 [r, in], [out, r]
  at::Tensor m = {};  // [out], of DoRA
};

// The tensors of the file. Those that nobody asked for are known.
class PeftTensors {
 public:
  explicit PeftTensors(const std::string& path) : file_(path) {
    for (const SafetensorsEntry& entry : file_.tensors()) left_.insert(entry.name);
  }

  int64_t size() const { return std::ssize(file_.tensors()); }
  const std::string& path() const { return file_.path(); }
  const std::set<std::string>& left() const { return left_; }

  // `module`: "base_model.model.model.layers.0.self_attn.q_proj".
  std::optional<FactorPair> find(const std::string& module) {
    const std::string a = module + ".lora_A.weight", b = module + ".lora_B.weight";
    if (file_.find(a) == nullptr || file_.find(b) == nullptr) return std::nullopt;
    return FactorPair{read(a, 2), read(b, 2), magnitudes(module)};
  }

 private:
  at::Tensor magnitudes(const std::string& module) {
    const std::string name = module + ".lora_magnitude_vector";
    if (file_.find(name) != nullptr) return read(name, 1);
    return file_.find(name + ".weight") == nullptr ? at::Tensor() : read(name + ".weight", 1);
  }

  at::Tensor read(const std::string& name, size_t dims) {
    const SafetensorsEntry& entry = *file_.find(name);
    if (entry.shape.size() != dims) {
      fail(Code::kStateMismatch, path(), name, "is", to_text(entry.shape) + ", not a",
           dims == 1 ? "vector" : "matrix");
    }
    at::Tensor out = at::empty(entry.shape, at::TensorOptions(scalar_of(entry.element)));
    file_.read(entry, 0, bytes_of(out));
    left_.erase(name);
    return out.to(at::kFloat);
  }

  SafetensorsFile file_;
  std::set<std::string> left_;
};

// A matrix of ours that may have factors.
struct AdapterSite {
  LoraTarget target{};
  std::string a, b;        // their names
  Sizes a_sizes, b_sizes;  // of rank 1
};
using AdapterSites = std::map<std::string, AdapterSite>;  // by the weight's name

// "layers.0.attention.q.lora_a" stands beside "layers.0.attention.q.weight", and "w1_lora_a" beside
// "w1".
std::string weight_beside(const std::string& factor) {
  constexpr size_t kSuffix = 7;  // of ".lora_a"
  const std::string stem = factor.substr(0, factor.size() - kSuffix);
  return factor[stem.size()] == '.' ? stem + ".weight" : stem;
}

void add_site(AdapterSites& sites, LoraTarget target, const std::string& name, const Sizes& sizes) {
  AdapterSite& site = sites[weight_beside(name)];
  site.target = target;
  const bool a = name.ends_with("lora_a");
  (a ? site.a : site.b) = name;
  (a ? site.a_sizes : site.b_sizes) = sizes;
}

AdapterSites sites_of(const ModelConfig& plain) {
  AdapterSites out;
  for (const auto& [name_of_target, target] : names_of(LoraTarget{})) {
    if (!has_target(plain, target)) continue;
    ModelConfig model = with_still_router(plain);
    model.lora = {.factors = {.rank = 1}, .targets = {target}};
    build_model(model)->for_each_param(-1, [&, t = target](const std::string& name, Param& p) {
      if (!is_adapter(name)) return;
      if (!p.per_expert) return add_site(out, t, name, p.global);
      for (const int64_t e : p.experts) {
        add_site(out, t, expert_name(name, e), {p.global.begin() + 1, p.global.end()});
      }
    });
  }
  return out;
}

// Rows of ours, from `row` on, that have factors of theirs.
struct FactorRows {
  at::Tensor a, b, m;
  int64_t row = 0;
};

class PeftReading {
 public:
  PeftReading(const std::string& folder, const HfConfig& config, TensorOf weights)
      : weights_(std::move(weights)),
        settings_(read_peft_settings(folder)),
        theirs_(folder + "/adapter_model.safetensors"),
        sites_(sites_of(config.model)) {
    const std::vector<HfTensor> table = hf_names(*config.family, config.model, /*fused=*/true);
    list_parameters(table);
    for (const HfTensor& ours : table) {
      if (sites_.contains(ours.name)) take(ours);
    }
    require_all_used();
  }

  PeftAdapterRead result() const {
    PeftAdapterRead out{.lora = {.factors = settings_.factors, .targets = {}}};
    const int64_t most = most_blocks(), r = settings_.factors.rank;
    const auto times = static_cast<double>(most);
    LoraConfig& factors = out.lora.factors;
    factors.rank = most * r;
    factors.alpha *= factors.rslora ? std::sqrt(times) : times;
    for (const auto& [name, target] : names_of(LoraTarget{})) {
      if (targets_.contains(target)) out.lora.targets.push_back(target);
    }
    for (const auto& [weight, site] : sites_) {
      if (!targets_.contains(site.target)) continue;
      out.added += !rows_.contains(weight);
      fill(out, weight, site);
    }
    out.tensors = theirs_.size();
    if (most > 1) {
      out.notes.push_back("rank " + std::to_string(r) + " becomes " + std::to_string(most * r) +
                          ": matrices that are one here have an A each");
    }
    return out;
  }

 private:
  bool is_targeted(const std::string& theirs) const {
    return std::ranges::any_of(settings_.parameters, [&](const std::string& target) {
      return theirs == target || theirs.ends_with('.' + target);
    });
  }

  // PEFT wraps a module's parameters one around the other, in the order in which it has them.
  void list_parameters(const std::vector<HfTensor>& table) {
    for (const HfTensor& ours : table) {
      for (const HfPiece& piece : ours.pieces) {
        if (!is_targeted(piece.name)) continue;
        std::vector<std::string>& names = parameters_[split_name(piece.name).module];
        if (std::ranges::find(names, piece.name) == names.end()) names.push_back(piece.name);
      }
    }
  }

  std::string module_of(const std::string& theirs, bool parameter) const {
    const std::string module = split_name(theirs).module;
    std::string out = "base_model.model." + module;
    const auto at = parameters_.find(module);
    if (!parameter || at == parameters_.end()) return out;
    const auto place = std::ranges::find(at->second, theirs);
    for (auto i = at->second.end() - place; i > 1; --i) out += ".base_layer";
    return out;
  }

  void take(const HfTensor& ours) {
    for (const HfPiece& piece : ours.pieces) {
      if (piece.shape.size() < 2) continue;
      const std::string module = module_of(piece.name, is_parameter(piece, ours));
      if (!pairs_.contains(module)) pairs_[module] = theirs_.find(module);
      const std::optional<FactorPair>& pair = pairs_.at(module);
      if (!pair) continue;
      const PieceRows rows = rows_of(piece, ours.columns, kMergeThere);
      require_magnitudes(*pair, module, rows.out, sites_.at(ours.name).target);
      const FactorPair own = of_expert(*pair, rows, module);
      const auto part = [&](const at::Tensor& t) {
        return t.slice(0, rows.first, rows.first + (piece.rows - 1) * rows.step + 1, rows.step);
      };
      rows_[ours.name].push_back(
          {own.a, part(own.b), own.m.defined() ? part(own.m) : own.m, piece.row});
      targets_.insert(sites_.at(ours.name).target);
    }
  }

  void require_magnitudes(const FactorPair& pair, const std::string& module, int64_t out,
                          LoraTarget target) const {
    const bool dora = settings_.factors.dora;
    if (dora && (target == LoraTarget::kExperts || target == LoraTarget::kRouter)) {
      fail(Code::kBadModelConfig, theirs_.path(), module, "has use_dora, which adapters of",
           to_text(target), "here do not have;", kMergeThere);
    }
    const std::string beside = module + ".lora_magnitude_vector";
    if (dora && !pair.m.defined()) {
      fail(Code::kStateMismatch, theirs_.path(), "has no", beside + ", and use_dora is true");
    }
    if (!dora && pair.m.defined()) {
      fail(Code::kStateMismatch, theirs_.path(), "has", beside + ", and use_dora is not true");
    }
    if (dora && pair.m.size(0) != out) {
      fail(Code::kStateMismatch, theirs_.path(), beside, "has", pair.m.size(0), "numbers of", out,
           "rows");
    }
  }

  FactorPair of_expert(const FactorPair& pair, const PieceRows& rows,
                       const std::string& module) const {
    const int64_t E = rows.experts, r = settings_.factors.rank, in = rows.in, out = rows.out;
    const auto is = [&](int64_t across, int64_t down) {
      return pair.a.sizes().vec() == Sizes{E * r, across} &&
             pair.b.sizes().vec() == Sizes{down, r * E};
    };
    const bool may_turn = E > 1 && !rows.in_first && is(out, in);
    if (!is(in, out) && !may_turn) {
      fail(Code::kStateMismatch, theirs_.path(), module + ".lora_A and lora_B are",
           to_text(pair.a.sizes().vec()), "and", to_text(pair.b.sizes().vec()) + ", beside", E,
           "matrices", to_text(Sizes{out, in}), "of rank", r);
    }
    if (E == 1) return pair;
    const bool turned = may_turn && (in != out || settings_.turned);
    const at::Tensor a = pair.a.view({E, r, -1}).select(0, rows.expert);
    const at::Tensor b = pair.b.view({-1, r, E}).select(2, rows.expert);
    return turned ? FactorPair{b.t(), a.t()} : FactorPair{a, b};
  }

  void require_all_used() const {
    if (theirs_.left().empty() && !rows_.empty()) return;
    std::string lines;
    for (const std::string& name : theirs_.left()) lines += "\n  " + name;
    fail(Code::kStateMismatch, theirs_.path(),
         "has tensors that are factors of no target of model.lora (attention, experts, shared, "
         "router, ffn of this model):" +
             (lines.empty() ? " it has none at all" : lines),
         "\n ", kMergeThere);
  }

  // Each other A of a matrix of ours is a block of its own.
  static std::vector<at::Tensor> blocks_of(const std::vector<FactorRows>& rows) {
    std::vector<at::Tensor> out;
    for (const FactorRows& part : rows) {
      if (block_of(out, part) == std::ssize(out)) out.push_back(part.a);
    }
    return out;
  }
  static int64_t block_of(const std::vector<at::Tensor>& blocks, const FactorRows& part) {
    const auto at =
        std::ranges::find_if(blocks, [&](const at::Tensor& a) { return at::equal(a, part.a); });
    return at - blocks.begin();
  }

  int64_t most_blocks() const {
    size_t out = 1;
    for (const auto& [weight, rows] : rows_) out = std::max(out, blocks_of(rows).size());
    return static_cast<int64_t>(out);
  }

  // As a new run begins, and what theirs has in its place.
  void fill(PeftAdapterRead& out, const std::string& weight, const AdapterSite& site) const {
    const int64_t rank = out.lora.factors.rank, r = settings_.factors.rank;
    Param begin = Param::of({rank, site.a_sizes.back()}, lora_a_init());
    initialize(begin, site.a, 0);
    const at::Tensor a = begin.value.detach();
    const at::Tensor b = at::zeros({Box::whole(site.b_sizes).numel(), rank});
    if (const auto at = rows_.find(weight); at != rows_.end()) {
      const std::vector<at::Tensor> blocks = blocks_of(at->second);
      for (size_t k = 0; k < blocks.size(); ++k) {
        a.narrow(0, static_cast<int64_t>(k) * r, r).copy_(blocks[k]);
      }
      for (const FactorRows& part : at->second) {
        b.narrow(0, part.row, part.b.size(0))
            .narrow(1, block_of(blocks, part) * r, r)
            .copy_(part.b);
      }
    }
    Sizes sizes = site.b_sizes;
    sizes.back() = rank;
    out.factors[site.a] = a;
    out.factors[site.b] = b.view(sizes);
    if (!settings_.factors.dora) return;
    sizes.pop_back();
    out.factors[site.b.substr(0, site.b.size() - 1) + 'm'] =
        above_norms(weight, b.size(0)).view(sizes);
  }

  // What the magnitudes of a weight's rows have above the rows' norms: 0 where theirs has none.
  at::Tensor above_norms(const std::string& weight, int64_t rows) const {
    const at::Tensor out = at::zeros({rows});
    const auto at = rows_.find(weight);
    if (at == rows_.end()) return out;
    const at::Tensor norms = row_norms(weights_(weight).to(at::kFloat).reshape({rows, -1}));
    for (const FactorRows& part : at->second) {
      const int64_t n = part.m.size(0);
      out.narrow(0, part.row, n).copy_(part.m - norms.narrow(0, part.row, n));
    }
    return out;
  }

  TensorOf weights_;
  PeftSettings settings_;
  PeftTensors theirs_;
  AdapterSites sites_;
  std::map<std::string, std::vector<std::string>> parameters_;  // targeted ones of a module
  std::map<std::string, std::optional<FactorPair>> pairs_;      // by module
  std::map<std::string, std::vector<FactorRows>> rows_;         // by our weight
  std::set<LoraTarget> targets_;
};

}  // namespace

ModelConfig with_still_router(ModelConfig model) {
  if (auto* const biased = std::get_if<SigmoidBiasRouting>(&model.moe.router)) {
    biased->bias_rate = 0;
  }
  return model;
}

PeftAdapterRead read_peft(const std::string& folder, const HfConfig& config,
                          const TensorOf& weights) {
  if (!config.factors.empty()) {
    fail(Code::kBadValue, "--adapter", "the family", config.family->model_type,
         "has factors that the import multiplied into the weights;", kMergeThere);
  }
  refuse_pickles(folder);
  return PeftReading(folder, config, weights).result();
}

}  // namespace troupe
