#include "troupe/train/params/rebalance.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/distributed/params/balanced_expert_placement.h"
#include "troupe/train/observe/step_line.h"
#include "troupe/train/params/move_experts.h"

namespace troupe {

std::string moved_line(int64_t step, int64_t experts, const std::vector<ExpertsMoved>& moved) {
  std::string out = "experts moved after step " + std::to_string(step) + ": ";
  for (const ExpertsMoved& m : moved) {
    if (&m != moved.data()) out += "; ";
    out.append("layer ").append(std::to_string(m.layer)).append(": ");
    out.append(std::to_string(m.experts)).append(" of ").append(std::to_string(experts));
    out.append(", max/mean rows of a rank ").append(fixed(m.before, 2)).append(" to ");
    out.append(fixed(m.after, 2));
  }
  return out;
}

Rebalancer::Rebalancer(RebalanceConfig config, Model& model, const std::vector<Place>& places,
                       ParamStore& store, std::shared_ptr<ProcessGroup> experts, SumOver all_sum)
    : config_(config), store_(store), experts_(std::move(experts)), all_sum_(std::move(all_sum)) {
  for (const Place& place : places) {
    layers_.push_back({.unit = place.unit, .placement = place.placement});
    layers_.back().before.resize(static_cast<size_t>(place.placement.experts()));
  }
  auto layer = layers_.begin();
  model.for_each_moe([&](int64_t unit, MoeLayer& moe) {
    while (layer != layers_.end() && layer->unit != unit) ++layer;
    TROUPE_CHECK(layer != layers_.end(), "unit", unit, "has a MoE layer that is not among the",
                 layers_.size(), "of the model");
    layer++->moe = &moe;
  });
}

std::vector<ExpertsMoved> Rebalancer::after_step(int64_t step, const StepOutput& output) {
  const at::NoGradGuard no_grad;
  std::map<int64_t, size_t> seen;  // layers of a unit so far
  for (Layer& layer : layers_) {
    if (layer.moe == nullptr) continue;
    const at::Tensor& rows = output.moe.at(layer.unit).at(seen[layer.unit]++).counts_E;
    layer.rows_E = layer.rows_E.defined() ? layer.rows_E + rows : rows;
  }
  if (step % config_.every != 0) return {};
  const auto rows = rows_of_all();
  std::vector<ExpertsMoved> out;
  std::vector<std::pair<Layer*, ExpertPlacement>> to;
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const ExpertPlacement& now = layer.placement;
    const ExpertPlacement next = balanced_expert_placement(now, rows[i]);
    const ExpertsMoved m{.layer = layer.unit - 1,
                         .experts = moved_experts(now, next),
                         .before = rank_load(now, rows[i]),
                         .after = rank_load(next, rows[i])};
    layer.rows_E.reset();
    layer.before.assign(layer.before.size(), 0);
    if (m.experts == 0 || m.after >= m.before || m.before - m.after < config_.gain) continue;
    out.push_back(m);
    to.emplace_back(&layer, next);
  }
  move(to);
  return out;
}

void Rebalancer::move(const std::vector<std::pair<Layer*, ExpertPlacement>>& to) {
  if (to.empty()) return;
  std::vector<ExpertMove> moves;
  for (const auto& [layer, next] : to) {
    if (layer->moe == nullptr) continue;
    moves.push_back({.params = {}, .from = layer->placement, .to = next});
    for_each_param(layer->moe->experts(), "", [&](const std::string&, Param& p) {
      if (p.per_expert) moves.back().params.push_back(&p);
    });
  }
  if (!moves.empty()) move_experts(store_, *experts_, moves);
  for (const auto& [layer, next] : to) {
    if (layer->moe != nullptr) layer->moe->place(next);
    layer->placement = next;
  }
}

std::vector<std::vector<int64_t>> Rebalancer::rows_of_all() const {
  std::vector<at::Tensor> own;
  const at::TensorOptions on = store_.options().dtype(at::kLong);
  for (const Layer& layer : layers_) {
    const auto E = static_cast<int64_t>(layer.before.size());
    own.push_back(layer.rows_E.defined() ? layer.rows_E : at::zeros({E}, on));
  }
  std::vector<std::vector<int64_t>> out;
  if (own.empty()) return out;
  const at::Tensor all = summed(all_sum_, at::cat(own)).cpu();
  const auto* rows = all.const_data_ptr<int64_t>();
  for (const Layer& layer : layers_) {
    out.push_back(layer.before);
    for (int64_t& of_expert : out.back()) of_expert += *rows++;
  }
  return out;
}

RebalanceState Rebalancer::state() const {
  RebalanceState out{.ranks = experts_->size()};
  for (const auto& rows : rows_of_all()) {
    out.rows.insert(out.rows.end(), rows.begin(), rows.end());
  }
  for (const Layer& layer : layers_) {
    const ExpertPlacement& p = layer.placement;
    for (int64_t e = 0; e < p.experts(); ++e) out.owners.push_back(p.owners(e)[0]);
  }
  return out;
}

namespace {

// Whether each rank has as many experts in both: no rank has room for more.
bool same_counts(const ExpertPlacement& a, const ExpertPlacement& b) {
  for (int64_t rank = 0; rank < a.ranks(); ++rank) {
    if (a.held_by(rank).size() != b.held_by(rank).size()) return false;
  }
  return a.ranks() == b.ranks();
}

}  // namespace

bool Rebalancer::restore(const RebalanceState& state) {
  size_t all = 0;
  for (const Layer& layer : layers_) all += layer.before.size();
  if (state.ranks != experts_->size() || state.owners.size() != all || state.rows.size() != all) {
    return false;
  }
  std::vector<std::pair<Layer*, ExpertPlacement>> to;
  auto owner = state.owners.begin();
  for (Layer& layer : layers_) {
    std::vector<std::vector<int32_t>> owners;
    for (size_t e = 0; e < layer.before.size(); ++e) {
      owners.push_back({static_cast<int32_t>(*owner++)});
    }
    const ExpertPlacement& now = layer.placement;
    const ExpertPlacement saved = listed(state.ranks, std::move(owners));
    if (!same_counts(now, saved)) return false;
    if (moved_experts(now, saved) > 0) to.emplace_back(&layer, saved);
  }
  auto rows = state.rows.begin();
  for (Layer& layer : layers_) {
    for (int64_t& before : layer.before) before = *rows++;
  }
  move(to);
  return true;
}

}  // namespace troupe
