#include "troupe/schedule/full_shard.h"

#include <algorithm>
#include <set>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/schedule/sharing.h"

namespace troupe {
namespace {

// A computation with the receives that stand before it and the sends behind it.
struct Step {
  std::vector<Action> before = {};
  Action computation;
  std::vector<Action> behind = {};
};

// Computations with the same parameters, or two that run beside each other, with those of each.
struct Visit {
  struct Use {
    int owner;
    size_t next = 0;  // the visit that uses the same parameters next; 0: none
  };
  std::vector<Use> uses = {};
  std::vector<Step> steps = {};

  Use* use_of(int owner) {
    const auto found = std::ranges::find(uses, owner, &Use::owner);
    return found == uses.end() ? nullptr : &*found;
  }
};

std::vector<Visit> visits_of(const std::vector<Action>& list, const std::vector<int>& owner) {
  std::vector<Visit> out;
  std::vector<int> last(owner.size(), -1);  // each owner's latest visit
  std::vector<Action> before;
  bool beside = false;  // the computation before runs beside this one
  for (const Action& a : list) {
    if (a.kind == Kind::kSend) {
      out.back().steps.back().behind.push_back(a);
      continue;
    }
    if (a.kind == Kind::kRecv) {
      before.push_back(a);
      continue;
    }
    const int o = owner[a.chunk];
    const bool same = !out.empty() && out.back().uses.size() == 1 &&
                      out.back().uses.front().owner == o && !a.beside;
    if (!beside && !same) out.emplace_back();
    if (out.back().use_of(o) == nullptr) {
      if (last[o] >= 0) out[last[o]].use_of(o)->next = out.size() - 1;
      last[o] = static_cast<int>(out.size()) - 1;
      out.back().uses.push_back({o});
    }
    out.back().steps.push_back({std::exchange(before, {}), a});
    beside = a.beside;
  }
  return out;
}

// The list of one rank.
class Builder {
 public:
  Builder(const FullShard& config, const StepWork& work, const std::vector<Action>& list)
      : config_(config),
        work_(work),
        owner_(owners(work)),
        several_(owners_on_several_ranks(work)),
        visits_(visits_of(list, owner_)) {
    for (const auto& [a, b] : work.tied) tied_.insert(owner_[b]);
    last_.resize(owner_.size(), nullptr);
    for (const Visit& visit : visits_) {
      for (const Step& step : visit.steps) {
        if (makes_gradients(step.computation)) last_[owner_[step.computation.chunk]] = &step;
        late_ |= step.computation.kind == Kind::kBackwardWeight;
      }
    }
  }

  std::vector<Action> build() && {
    for (size_t v = 0; v < visits_.size(); ++v) {
      gather_to(v + static_cast<size_t>(config_.prefetch));
      std::vector<Action> sums;  // of the visit's last computation, issued when the chunk is freed
      bool beside = false;
      for (const Step& step : visits_[v].steps) {
        if (!beside) add(std::exchange(sums, {}));
        add(step.before);
        out_.push_back(step.computation);
        add(step.behind);
        for (const Action& sum : sums_after(step)) sums.push_back(sum);
        beside = step.computation.beside;
      }
      for (const Visit::Use& use : visits_[v].uses) {
        if (stays(v, use)) continue;
        out_.push_back({Kind::kFree, use.owner});
        present_.erase(use.owner);
      }
      add(sums);
    }
    for (size_t o = 0; o < several_.size(); ++o) {
      if (several_[o] && last_[o] != nullptr) out_.push_back({Kind::kReduce, static_cast<int>(o)});
    }
    add_update(out_, work_, false);
    return std::move(out_);
  }

 private:
  static bool makes_gradients(const Action& a) {
    return a.kind == Kind::kBackward || a.kind == Kind::kBackwardWeight;
  }
  void add(const std::vector<Action>& actions) {
    out_.insert(out_.end(), actions.begin(), actions.end());
  }
  void gather_to(size_t visit) {
    for (; asked_ < visits_.size() && asked_ <= visit; ++asked_) {
      for (const Visit::Use& use : visits_[asked_].uses) {
        if (present_.insert(use.owner).second) out_.push_back({Kind::kGather, use.owner});
      }
    }
  }

  bool stays(size_t v, const Visit::Use& use) const {
    if (use.next == 0) return false;
    if (use.next <= v + 1 + static_cast<size_t>(config_.prefetch)) return true;
    const auto of_owner = [&](const Step& step) {
      return owner_[step.computation.chunk] == use.owner;
    };
    const std::vector<Step>&now = visits_[v].steps, &next = visits_[use.next].steps;
    const bool same_microbatch =
        std::find_if(next.begin(), next.end(), of_owner)->computation.microbatch ==
        std::find_if(now.rbegin(), now.rend(), of_owner)->computation.microbatch;
    if (!config_.reshard) return same_microbatch || work_.ranks > 1;
    return same_microbatch && tied_.contains(use.owner);
  }

  // Where tied chunks are on one rank, a microbatch's backward goes from the last to the first.
  std::vector<Action> sums_after(const Step& step) const {
    const Action& a = step.computation;
    const int o = owner_[a.chunk];
    if (!makes_gradients(a) || several_[o]) return {};
    // With late weights the halves of several microbatches overlap in one sum.
    const bool each = config_.reduce_each && !late_ && !(work_.ranks > 1 && tied_.contains(o));
    if (each && o == a.chunk) return {{Kind::kReduce, o, a.microbatch}};
    if (!each && last_[o] == &step) return {{Kind::kReduce, o}};
    return {};
  }

  const FullShard& config_;
  const StepWork& work_;
  const std::vector<int> owner_;
  const std::vector<bool> several_;
  const std::vector<Visit> visits_;
  std::vector<const Step*> last_;  // of each owner's gradients
  std::set<int> tied_, present_;
  bool late_ = false;
  size_t asked_ = 0;  // visits whose parameters are there or on their way
  std::vector<Action> out_;
};

}  // namespace

Schedule FullShard::build(const StepWork& work) const {
  if (prefetch < 0) fail(Code::kBadValue, "prefetch", prefetch, "is less than 0");
  Schedule out = work_lists(work);
  for (std::vector<Action>& list : out) list = Builder(*this, work, list).build();
  return out;
}

}  // namespace troupe
