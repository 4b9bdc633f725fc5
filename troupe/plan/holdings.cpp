#include "troupe/plan/holdings.h"

#include <utility>

namespace troupe {

Holdings::Holdings(const StepCosts& costs, const std::vector<int>& owner, bool drops, int depth)
    : costs_(costs), owner_(owner), drops_(drops), depth_(static_cast<size_t>(depth)) {
  now_.runtime = costs.runtime;
  for (size_t i = 0; i < costs.chunks.size(); ++i) {
    const ChunkCosts& c = costs.chunks[i];
    if (owner[i] < 0) continue;
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
    case Kind::kBackwardInput: backward_input(a); break;
    case Kind::kReduce: reduce(a.chunk); break;
    case Kind::kSend: send(a); break;
    case Kind::kRecv:
      now_.activations += costs_.chunks[static_cast<size_t>(a.chunk)].border;
      received_.emplace(a.chunk, a.microbatch);
      break;
    case Kind::kUpdate:  // the next step's backward makes gradients anew
      update(a.chunk);
      break;
    default: break;
  }
  look(0);
}

// Gradients of an owner that is updated in backward go when the next one's update begins.
void Holdings::update(int chunk) {
  now_.gradients -= std::exchange(updating_, 0);
  look(costs_.update_memory);
  if (chunk < 0) {
    now_.gradients = 0;
    summed_.clear();
    here_.clear();
    return;
  }
  for (size_t c = 0; c < owner_.size(); ++c) {
    const auto here = here_.find(static_cast<int>(c));
    if (owner_[c] != chunk || here == here_.end()) continue;
    updating_ += here->second;
    here_.erase(here);
  }
  if (summed_.erase(chunk) > 0) updating_ += sum_of(costs_, owner_, chunk, &ChunkCosts::sum);
}

void Holdings::finish_sum() {
  now_.gradients -= in_flight_.front();
  in_flight_.pop_front();
}

void Holdings::take(int chunk, int microbatch) {
  if (received_.erase({chunk, microbatch}) == 0) return;
  now_.activations -= costs_.chunks[static_cast<size_t>(chunk)].border;
}

void Holdings::send(const Action& a) {
  std::deque<double>& held = sent_[{a.peer, owner_[static_cast<size_t>(a.chunk)] >= 0}];
  if (held.size() == depth_) {
    now_.activations -= held.front();
    held.pop_front();
  }
  held.push_back(costs_.chunks[static_cast<size_t>(a.chunk)].border);
  now_.activations += held.back();
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
  take(a.chunk, a.microbatch);  // `saved` and `input` hold it
  look(costs_.workspace);
}

void Holdings::backward_input(const Action& a) {
  const ChunkCosts& c = costs_.chunks[static_cast<size_t>(a.chunk)];
  look(costs_.workspace);
  take(a.chunk + 1, a.microbatch);
  now_.activations -= c.saved - c.late;
}

void Holdings::backward(const Action& a) {
  const ChunkCosts& c = costs_.chunks[static_cast<size_t>(a.chunk)];
  look(costs_.workspace);  // its begin: the graph is whole
  if (a.kind == Kind::kBackward) take(a.chunk + 1, a.microbatch);
  const auto [here, first] = here_.try_emplace(a.chunk, c.made);
  now_.gradients += first ? c.made : c.gradient - here->second;
  if (!first) here->second = c.gradient;
  now_.activations -= a.kind == Kind::kBackward ? c.saved : c.late;
  // When a backward ends, its gradients are where the graph was, those too that are added next.
  look(costs_.workspace, first ? 0 : c.made);
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

void Holdings::look(double workspace, double gradients) {
  StepMemory moment = now_;
  moment.workspace = workspace;
  moment.gradients += gradients;
  if (moment.total() > peak_.total()) peak_ = moment;
}

}  // namespace troupe
