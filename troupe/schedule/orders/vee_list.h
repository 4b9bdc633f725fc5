// Writes one rank's list in a V, computation after computation: of its stage on the way down, or of
// the one on the way up. Microbatches of each kind and stage come in order by themselves.
#pragma once

#include <algorithm>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/schedule/orders/orders.h"

namespace troupe {

class VeeList {
 public:
  static constexpr int kDown = 0, kUp = 1;

  VeeList(const Pipeline& pipeline, int rank) : stages_{rank, pipeline.stages - 1 - rank} {}

  void forward(int way) { out_.push_back({Kind::kForward, stages_[way], forwards_[way]++}); }
  void backward(int way) { out_.push_back({Kind::kBackward, stages_[way], inputs_[way]++}); }
  // I, and a W that is owed from then on.
  void input(int way) {
    out_.push_back({Kind::kBackwardInput, stages_[way], inputs_[way]});
    owed_.push_back({Kind::kBackwardWeight, stages_[way], inputs_[way]++});
  }
  // The W that is owed longest, of either stage or of one.
  void weight() { weight_at(owed_.begin()); }
  void weight(int way) { weight_at(std::ranges::find(owed_, stages_[way], &StageStep::stage)); }
  int forwards(int way) const { return forwards_[way]; }
  bool owes(int way) const {
    return std::ranges::find(owed_, stages_[way], &StageStep::stage) != owed_.end();
  }
  // The list without microbatches from `microbatches` on: an order less some is as sound.
  std::vector<StageStep> take(int microbatches) && {
    TROUPE_CHECK(owed_.empty(), owed_.size(), "gradients of weights are owed at the end");
    std::erase_if(out_, [&](const StageStep& s) { return s.microbatch >= microbatches; });
    return std::move(out_);
  }

 private:
  void weight_at(std::vector<StageStep>::iterator owed) {
    TROUPE_CHECK(owed != owed_.end(), "no gradient of weights is owed");
    out_.push_back(*owed);
    owed_.erase(owed);
  }

  int stages_[2];
  int forwards_[2] = {}, inputs_[2] = {};
  std::vector<StageStep> owed_, out_;
};

}  // namespace troupe
