#include "bench/control_plane/state_boxes.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <bit>
#include <set>
#include <string_view>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/nn/config/presets.h"
#include "troupe/nn/model/model.h"

namespace troupe::control_plane {
namespace {

constexpr int64_t kMostExpertRanks = 8, kMostStages = 16, kLeastLayers = 4;
constexpr std::array<const char*, 3> kCopies = {"model.", "optimizer.m.", "optimizer.v."};

float value_of(std::string_view name) {
  constexpr uint64_t kValues = 4096;
  return static_cast<float>(1 + hash64(name) % kValues);
}

Param made_small(const Param& p) {
  Param out = p;
  for (size_t d = p.per_expert ? 1 : 0; d < out.global.size(); ++d) {
    out.global[d] = small_size(out.global[d]);
  }
  out.offset.assign(out.global.size(), 0);
  out.size = out.shown = out.global;
  return out;
}

// Experts first, first + 1, ..
Param with_experts(const Param& p, int64_t first, int64_t count) {
  Param out = p;
  out.offset[0] = first;
  out.size[0] = count;
  out.shown = out.size;
  out.experts.clear();
  for (int64_t e = first; e < first + count; ++e) out.experts.push_back(e);
  return out;
}

int64_t place_in(const std::vector<int64_t>& ranks, int64_t rank) {
  return std::ranges::find(ranks, rank) - ranks.begin();
}

int64_t power_of_two_in(int64_t n, int64_t most) {
  int64_t out = 1;
  while (2 * out <= most && n % (2 * out) == 0) out *= 2;
  return out;
}

}  // namespace

int64_t small_size(int64_t size) {
  return std::max(std::min<int64_t>(size, 4), size / 512);
}

int64_t Catalog::tensors() const {
  int64_t out = 0;
  for (const auto& unit : units) {
    for (const CatalogParam& p : unit) out += p.param.per_expert ? p.param.global[0] : 1;
  }
  return out * std::ssize(kCopies);
}

ModelConfig model_named(const std::string& name) {
  std::vector<std::string> found;
  for (const std::string_view one : ModelConfig::presets()) {
    if (one == name) return preset(name);
    if (one.starts_with(name)) found.emplace_back(one);
  }
  return preset(found.size() == 1 ? found.front() : name);
}

Catalog catalog_of(const ModelConfig& config) {
  Catalog out;
  out.layers = config.layers;
  const std::unique_ptr<Model> model = build_model(config);
  std::set<std::string> known;  // a table that several units read is the first one's
  for (int64_t unit = 0; unit < model->num_units(); ++unit) {
    auto& params = out.units.emplace_back();
    model->for_each_param(unit, [&](const std::string& name, Param& p) {
      if (!p.trainable() || !known.insert(name).second) return;
      params.push_back({name, made_small(p)});
      if (p.per_expert) out.experts = std::max(out.experts, p.global[0]);
    });
  }
  return out;
}

MeshShape shape_for(const Catalog& catalog, int64_t ranks) {
  MeshShape out;
  if (catalog.experts > 0) {
    const int64_t most = std::min(kMostExpertRanks, ranks);
    out.expert = std::min(power_of_two_in(ranks, most), power_of_two_in(catalog.experts, most));
  }
  const int64_t most = std::min(kMostStages, std::max<int64_t>(catalog.layers / kLeastLayers, 1));
  out.pipeline = power_of_two_in(ranks / out.expert, most);
  return out;
}

RankState::RankState(const Catalog& catalog, const ProcessMesh& mesh, int64_t rank) {
  const int64_t stages = mesh.shape().pipeline, stage = mesh.pipeline_index(rank);
  for (int64_t u = 0; u < std::ssize(catalog.units); ++u) {
    if (u * stages / std::ssize(catalog.units) != stage) continue;
    for (const bool experts : {false, true}) {
      add_bucket(catalog.units[static_cast<size_t>(u)], experts, mesh, rank);
    }
  }
  memory_ = at::zeros({std::ssize(kCopies), size_}, at::kFloat);
}

void RankState::add_bucket(const std::vector<CatalogParam>& params, bool experts,
                           const ProcessMesh& mesh, int64_t rank) {
  const auto owners = mesh.ranks_of(experts ? GroupKind::kExpertShard : GroupKind::kShard, rank);
  const auto same =
      mesh.ranks_of(experts ? GroupKind::kExpertReplicate : GroupKind::kReplicate, rank);
  const int64_t parts = mesh.size(GroupKind::kExpert),
                part = place_in(mesh.ranks_of(GroupKind::kExpert, rank), rank);
  std::vector<CatalogParam> held;
  int64_t total = 0;
  for (const CatalogParam& p : params) {
    if (p.param.per_expert != experts) continue;
    const int64_t count = experts ? p.param.global[0] / parts : 0;
    TROUPE_CHECK(!experts || count * parts == p.param.global[0], p.name, "over", parts, "ranks");
    held.push_back(experts ? CatalogParam{p.name, with_experts(p.param, part * count, count)} : p);
    total += held.back().param.numel();
  }
  const int64_t each = (total + std::ssize(owners) - 1) / std::ssize(owners),
                own_from = place_in(owners, rank) * each;
  int64_t offset = 0;
  for (CatalogParam& p : held) {
    const int64_t n = p.param.numel(), from = std::max(own_from, offset),
                  to = std::min(own_from + each, offset + n);
    if (from < to) {
      pieces_.push_back({.name = p.name,
                         .param = std::move(p.param),
                         .from = from - offset,
                         .at = size_,
                         .count = to - from,
                         .replica = {place_in(same, rank), std::ssize(same)}});
      size_ += to - from;
    }
    offset += n;
  }
}

template <class F>
void RankState::for_each_copy(F&& f) const {
  for (int64_t copy = 0; copy < std::ssize(kCopies); ++copy) {
    const at::Tensor all = memory_.select(0, copy);
    for (const Piece& piece : pieces_) {
      f(kCopies[static_cast<size_t>(copy)] + piece.name, piece,
        all.narrow(0, piece.at, piece.count));
    }
  }
}

CheckpointState RankState::named(bool to_load) const {
  CheckpointState out;
  for_each_copy([&](const std::string& name, const Piece& piece, const at::Tensor& elements) {
    if (to_load && piece.replica.index > 0) return;
    out.add_range(name, piece.param, piece.from, elements, to_load ? Replica() : piece.replica);
  });
  return out;
}

void RankState::write_values() {
  for_each_copy([](const std::string& name, const Piece&, const at::Tensor& elements) {
    std::fill_n(elements.mutable_data_ptr<float>(), elements.numel(), value_of(name));
  });
}

void RankState::forget_values() {
  std::fill_n(memory_.mutable_data_ptr<float>(), memory_.numel(), 0.F);
}

std::string RankState::wrong_value() const {
  std::string out;
  for_each_copy([&](const std::string& name, const Piece& piece, const at::Tensor& elements) {
    if (piece.replica.index > 0) return;  // not loaded here
    const float* const first = elements.const_data_ptr<float>();
    const bool right = std::all_of(first, first + elements.numel(),
                                   [value = value_of(name)](float x) { return x == value; });
    if (!right && out.empty()) out = name;
  });
  return out;
}

}  // namespace troupe::control_plane
