// Which parameters of a store each unit of a model reads, and the store's transfers by unit. A list
// gathers, frees and reduces by owner: the unit under whose name the parameters of some units move
// together. `at` fails for a unit that is not here.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "troupe/nn/model/model.h"
#include "troupe/train/params/param_store.h"

namespace troupe {

class UnitParams {
 public:
  using SlotParam = std::pair<int64_t, Param*>;  // a trained parameter and its slot

  // `owners`: of each unit. The store must outlive it.
  UnitParams(Model& model, ParamStore& store, const std::vector<int>& owners);

  // The trained parameters of a unit that is here, in the order of the model.
  const std::vector<SlotParam>& at(int unit) const { return params_.at(unit); }

  // Waits for the values that a unit reads. ParamStore says what gather() and drop() do,
  // StepGradients what reduce() does.
  void need(int unit) { store_.need(buckets_.at(unit)); }
  void gather(int owner) { store_.gather(owned_buckets_.at(owner)); }
  void drop(int owner) { store_.drop(owned_buckets_.at(owner)); }
  const std::vector<int64_t>& buckets_of(int owner) const { return owned_buckets_.at(owner); }
  void reduce(int owner, bool last) { store_.gradients().reduce(owned_buckets_.at(owner), last); }

 private:
  ParamStore& store_;
  std::map<int, std::vector<SlotParam>> params_;                 // by unit
  std::map<int, std::vector<int64_t>> buckets_, owned_buckets_;  // by unit, by owner
};

}  // namespace troupe
