#include "troupe/train/params/unit_params.h"

#include <algorithm>
#include <string>

namespace troupe {

UnitParams::UnitParams(Model& model, ParamStore& store, const std::vector<int>& owners)
    : store_(store) {
  for (int unit = 0; unit < static_cast<int>(model.num_units()); ++unit) {
    if (!model.has_unit(unit)) continue;
    auto& params = params_[unit];
    auto& buckets = buckets_[unit];
    std::vector<int64_t>& all = owned_buckets_[owners[static_cast<size_t>(unit)]];
    model.for_each_param(unit, [&](const std::string&, Param& p) {
      const int64_t slot = store.slot_of(&p);
      if (slot < 0) return;
      params.emplace_back(slot, &p);
      const int64_t bucket = store.slots()[static_cast<size_t>(slot)].bucket;
      for (std::vector<int64_t>* list : {&buckets, &all}) {
        if (std::find(list->begin(), list->end(), bucket) == list->end()) list->push_back(bucket);
      }
    });
  }
}

}  // namespace troupe
