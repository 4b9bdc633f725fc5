#include "troupe/schedule/interleavings.h"

#include <algorithm>
#include <set>
#include <utility>

namespace troupe {

WorldRun::WorldRun(const WorldEvents& events, int capacity)
    : events_(&events),
      capacity_(capacity),
      at_(events.ranks.size(), 0),
      sent_(events.links.size(), 0),
      posted_(events.links.size(), 0) {
  for (size_t rank = 0; rank < at_.size(); ++rank) skip_own(rank);
}

void WorldRun::skip_own(size_t rank) {
  for (; !has_ended(rank); ++at_[rank]) {
    const Event& e = next(rank);
    if (e.kind == Event::kMeet || e.kind == Event::kSend || e.kind == Event::kAwait) return;
    if (e.kind == Event::kPost) ++posted_[static_cast<size_t>(e.where)];
  }
}

bool WorldRun::members_wait(int group) const {
  const std::vector<int>& members = events_->groups[static_cast<size_t>(group)];
  return std::ranges::all_of(members, [&](int member) {
    const auto rank = static_cast<size_t>(member);
    return !has_ended(rank) && next(rank).kind == Event::kMeet && next(rank).where == group;
  });
}

bool WorldRun::can_go(size_t rank) const {
  if (has_ended(rank)) return false;
  const Event& e = next(rank);
  const auto where = static_cast<size_t>(e.where);
  switch (e.kind) {
    case Event::kMeet: return members_wait(e.where);
    case Event::kSend: return e.number < posted_[where] + capacity_;
    case Event::kAwait: return e.number < sent_[where];
    default: return true;
  }
}

void WorldRun::step(size_t rank) {
  const Event& e = next(rank);
  if (e.kind == Event::kSend) ++sent_[static_cast<size_t>(e.where)];
  ++at_[rank];
  skip_own(rank);
}

void WorldRun::go(size_t rank) {
  if (next(rank).kind != Event::kMeet) return step(rank);
  for (const int member : events_->groups[static_cast<size_t>(next(rank).where)]) {
    if (static_cast<size_t>(member) != rank) step(static_cast<size_t>(member));
  }
  step(rank);
}

void WorldRun::go_on() {
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < at_.size(); ++rank) {
      for (; can_go(rank); moved = true) go(rank);
    }
  }
}

bool WorldRun::has_ended() const {
  for (size_t rank = 0; rank < at_.size(); ++rank) {
    if (!has_ended(rank)) return false;
  }
  return true;
}

Interleavings interleavings(const WorldEvents& events, int capacity, int64_t most) {
  Interleavings out;
  std::set<std::vector<size_t>> seen;
  std::vector<WorldRun> open = {WorldRun(events, capacity)};
  seen.insert(open.back().places());
  while (!open.empty()) {
    const WorldRun now = open.back();
    open.pop_back();
    ++out.states;
    bool moved = false;
    for (size_t rank = 0; rank < events.ranks.size(); ++rank) {
      if (!now.can_go(rank)) continue;
      moved = true;
      WorldRun then = now;
      then.go(rank);
      if (seen.insert(then.places()).second) open.push_back(std::move(then));
    }
    if (!moved) {
      ++out.ends;
      out.all_end &= now.has_ended();
    }
    if (std::ssize(seen) > most) {
      out.whole = false;
      return out;
    }
  }
  return out;
}

}  // namespace troupe
