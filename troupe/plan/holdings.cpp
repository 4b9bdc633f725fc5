#include "troupe/plan/holdings.h"

namespace troupe {

Holdings::Holdings(const StepCosts& costs, const std::vector<int>& owner, bool drops)
    : costs_(costs), owner_(owner), drops_(drops) {
  now_.runtime = costs.runtime;
  for (const ChunkCosts& c : costs.chunks) {
    now_.state += c.state;
    now_.values += drops ? c.owned : c.values;
  }
  peak_ = now_;
}

void Holdings::issue(const Action& a) {
  switch (a.kind) {
    case Kind::kGather:
      if (drops_) now_.values += sum_of(costs_, owner_, a.chunk, &ChunkCosts::values);
      break;
    case Kind::kFree: now_.values -= sum_of(costs_, owner_, a.chunk, &ChunkCosts::values); break;
    case Kind::kForwardLight:
    case Kind::kForward: forward(a); break;
    case Kind::kBackward:
    case Kind::kBackwardWeight: backward(a); break;
    case Kind::kReduce: reduce(a.chunk); break;
    case Kind::kUpdate:  // the next step's backward makes gradients anew
      look(costs_.update_memory);
      now_.gradients = 0;
      summed_.clear();
      here_.clear();
      break;
    default: break;
  }
  look(0);
}

void Holdings::finish_sum() {
  now_.gradients -= in_flight_.front();
  in_flight_.pop_front();
}

void Holdings::forward(const Action& a) {
  const ChunkCosts& c = costs_.chunks[static_cast<size_t>(a.chunk)];
  const std::pair cell(a.chunk, a.microbatch);
  if (a.kind == Kind::kForwardLight) {
    now_.activations += c.input;
    light_.insert(cell);
  } else {
    now_.activations += c.saved - (light_.erase(cell) > 0 ? c.input : 0);
  }
  look(costs_.workspace);
}

void Holdings::backward(const Action& a) {
  const ChunkCosts& c = costs_.chunks[static_cast<size_t>(a.chunk)];
  look(costs_.workspace);  // its begin: the graph is whole
  const auto [here, first] = here_.try_emplace(a.chunk, c.made);
  now_.gradients += first ? c.made : c.gradient - here->second;
  if (!first) here->second = c.gradient;
  now_.activations -= c.saved;
  look(costs_.workspace);  // its end: gradients have the place of what the graph let go
}

void Holdings::reduce(int chunk) {
  in_flight_.push_back(sum_of(costs_, owner_, chunk, &ChunkCosts::summing));
  now_.gradients += in_flight_.back();
  look(0);
  for (size_t c = 0; c < owner_.size(); ++c) {
    const auto here = here_.find(static_cast<int>(c));
    if (owner_[c] != chunk || here == here_.end()) continue;
    now_.gradients -= here->second;
    here_.erase(here);
  }
  if (summed_.insert(chunk).second) {
    now_.gradients += sum_of(costs_, owner_, chunk, &ChunkCosts::sum);
  }
}

void Holdings::look(double workspace) {
  StepMemory moment = now_;
  moment.workspace = workspace;
  if (moment.total() > peak_.total()) peak_ = moment;
}

}  // namespace troupe
