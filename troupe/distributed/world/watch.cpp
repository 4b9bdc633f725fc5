#include "troupe/distributed/world/watch.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/unix_seconds.h"
#include "troupe/distributed/world/heartbeat.h"
#include "troupe/distributed/world/loss_search.h"
#include "troupe/distributed/world/verdict.h"

namespace troupe {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kPatience = 5s;  // for a store that may not answer

// "all_reduce of ranks 0, 1: E6001 closed" without the code, which the message already has.
std::string without_code(std::string text) {
  const std::string code = to_text(Code::kRankLost) + ' ';
  const size_t at = text.find(code);
  return at == std::string::npos ? text : text.erase(at, code.size());
}

}  // namespace

struct Watch::State {
  State(Self with, std::unique_ptr<KeyValueStore> with_store)
      : self(std::move(with)), store(std::move(with_store)) {
    for (int64_t r = 0; r < self.size; ++r) {
      if (r != self.rank && is_here(r)) neighbors.push_back(r);
    }
  }

  const Self self;
  const Process here = this_process();
  std::vector<int64_t> neighbors;              // the other ranks of this machine
  const std::unique_ptr<KeyValueStore> store;  // used by the thread only, as are the next four
  int64_t count = 0;                           // heartbeats so far
  bool lost = false;                           // a collective failed
  std::string words;                           // why this rank ends
  Code code = Code::kRankLost;                 // of `words`

  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> task;  // queued for the thread
  std::optional<LossSearch> search;
  std::optional<Verdict> verdict;        // of `search`
  std::optional<std::string> first_end;  // as of the last heartbeat
  bool stop = false, ended = false;
  std::atomic<bool> peer_ended = false;

  void run();
  void beat();
  void post_beat();
  void advance();
  void look_for_ends(const std::optional<std::string>& first);
  bool on_thread(std::function<void()> f);  // false: timed out
  void post_end(const std::string& text, Code with);
  LossSearch new_search();

  bool is_here(int64_t rank) const;
  bool has_ended(int64_t rank) const;
  Seen see(int64_t rank) const;
  void update(int64_t rank, std::optional<Beat>& beat) const;
};

void Watch::State::run() {
  auto next = steady_clock::now();
  std::unique_lock lock(mutex);
  while (!stop) {
    if (std::function<void()> asked = std::exchange(task, nullptr)) {
      lock.unlock();
      asked();
      lock.lock();
      changed.notify_all();
      continue;
    }
    const bool searching = search && !verdict;
    const bool beats = steady_clock::now() >= next;
    if (beats || (searching && steady_clock::now() >= search->next())) {
      if (beats) next = steady_clock::now() + self.beat;
      lock.unlock();
      if (beats) beat();
      if (searching) advance();
      lock.lock();
      continue;
    }
    changed.wait_until(lock, searching ? std::min(next, search->next()) : next);
  }
  ended = true;
  changed.notify_all();
}

void Watch::State::post_beat() {
  const RankStatus status = self.pulse->now();
  std::vector<SeenRank> seen;
  for (const int64_t r : neighbors) {
    if (const Seen how = see(r); how != Seen::kNothing) seen.push_back({r, how});
  }
  store->post(beat_key(self.rank),
              beat_text(Beat{.count = ++count,
                             .time = unix_seconds(),
                             .status = status,
                             .age = static_cast<double>(steady_now() - status.since) * 1e-9,
                             .waiting = self.pulse->waiting(),
                             .lost = lost,
                             .seen = std::move(seen),
                             .code = code,
                             .words = words}));
}

void Watch::State::beat() {
  try {
    post_beat();
    const std::optional<std::string> first = store->peek(kFirstEnd);
    {
      const std::lock_guard lock(mutex);
      first_end = first;
    }
    if (!peer_ended) look_for_ends(first);
  } catch (const Error&) {
    // The store is gone: the next collective reports it. On this machine rank 0's process decides.
    if (self.first_serves && self.rank != 0 && !is_here(0)) peer_ended = true;
    if (!peer_ended) look_for_ends({});
  }
}

// Where a launcher looks after the ranks, one that ended since it had lost another counts for
// nothing: the other may be this one, which the launcher then ends, and names.
void Watch::State::look_for_ends(const std::optional<std::string>& first) {
  if (self.all) {
    for (int64_t r = 0; r < self.size; ++r) {
      if (r != self.rank && self.all->of(r).ended_by_itself()) peer_ended = true;
    }
  } else {
    for (const int64_t r : neighbors) {
      if (has_ended(r)) peer_ended = true;
    }
  }
  if (!first) return;
  const std::optional<Verdict> verdict_there = first_end_of(*first).verdict;
  if (!self.all || (verdict_there && verdict_there->said_by_itself())) peer_ended = true;
}

// The search is the thread's own while it has no verdict.
void Watch::State::advance() {
  std::optional<std::string> first;
  {
    const std::lock_guard lock(mutex);
    first = first_end;
  }
  std::optional<Verdict> found = search->step(*store, steady_clock::now(), first);
  if (!found) return;
  const std::lock_guard lock(mutex);
  verdict = std::move(found);
  changed.notify_all();
}

bool Watch::State::on_thread(std::function<void()> f) {
  const auto done = std::make_shared<bool>(false);
  std::unique_lock lock(mutex);
  task = [this, done, f = std::move(f)] {
    f();
    const std::lock_guard inner(mutex);
    *done = true;
  };
  changed.notify_all();
  return changed.wait_for(lock, kPatience, [&] { return *done; });
}

// In the heartbeat for whoever looks, and as the verdict for those that come later. The first of
// the others tells it too.
void Watch::State::post_end(const std::string& text, Code with) {
  on_thread([this, text, with] {
    words = text;
    code = with;
    try {
      post_beat();
      store->claim(kFirstEnd, to_text(Verdict{.by = self.rank,
                                              .rank = self.rank,
                                              .cause = with,
                                              .status = self.pulse->now(),
                                              .causes = failed_text(self.rank, self.size, text)}));
    } catch (const Error&) {  // no peer can read it
    }
  });
}

LossSearch Watch::State::new_search() {
  return LossSearch({.rank = self.rank,
                     .size = self.size,
                     .beat = self.beat,
                     .first_serves = self.first_serves,
                     .see = [this](int64_t r) { return see(r); },
                     .is_here = [this](int64_t r) { return is_here(r); },
                     .update = [this](int64_t r, std::optional<Beat>& b) { update(r, b); }});
}

bool Watch::State::is_here(int64_t rank) const {
  const auto r = static_cast<size_t>(rank);
  return r < self.processes.size() && self.processes[r].machine == here.machine;
}

bool Watch::State::has_ended(int64_t rank) const {
  return see(rank) == Seen::kEnded;
}

Seen Watch::State::see(int64_t rank) const {
  if (rank < 0 || rank >= self.size) return Seen::kNothing;
  if (self.all && self.all->of(rank).ended()) return Seen::kEnded;
  if (!is_here(rank)) return Seen::kNothing;
  const int id = self.processes[static_cast<size_t>(rank)].id;
  const char state = state_of(id);
  if (state == 'T' || state == 't') return Seen::kStopped;
  return troupe::has_ended(id, state) ? Seen::kEnded : Seen::kNothing;
}

// The current status if the launcher shares the pulse, else the last heartbeat.
void Watch::State::update(int64_t rank, std::optional<Beat>& beat) const {
  if (!self.all) return;
  if (!beat) beat.emplace();
  const Pulse& pulse = self.all->of(rank);
  beat->status = pulse.now();
  beat->age = static_cast<double>(steady_now() - beat->status.since) * 1e-9;
  beat->waiting = pulse.waiting();
}

Watch::Watch(Self self, std::unique_ptr<KeyValueStore> store)
    : state_(std::make_shared<State>(std::move(self), std::move(store))) {
  std::thread([state = state_] { state->run(); }).detach();
}

// A thread that hangs in the network is abandoned.
Watch::~Watch() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kPatience, [&] { return state_->ended; });
}

void Watch::last_words(const std::string& text, Code code) {
  state_->post_end(text, code);
}

bool Watch::has_ended(int64_t rank) const {
  return state_->has_ended(rank);
}

bool Watch::peer_lost() const {
  const Self& self = state_->self;
  if (!self.all) return false;
  for (int64_t r = 0; r < self.size; ++r) {
    const Pulse& pulse = self.all->of(r);
    if (r == self.rank || !pulse.ended_by_itself()) continue;
    if (needs_all_ranks(pulse.now().phase)) return true;
  }
  return false;
}

bool Watch::peer_ended() const {
  return state_->peer_ended;
}

Loss Watch::find_lost(const std::string& failed) {
  const Self& self = state_->self;
  const auto begins = [state = state_] {
    state->lost = true;
    const std::lock_guard lock(state->mutex);
    state->verdict.reset();
    state->search.emplace(state->new_search());
  };
  Verdict found;
  bool answered = state_->on_thread(begins);
  {
    std::unique_lock lock(state_->mutex);
    const auto limit = self.beat * LossSearch::kTurn * LossSearch::kTurns + kPatience;
    answered = answered &&
               state_->changed.wait_for(lock, limit, [&] { return state_->verdict.has_value(); });
    if (answered) found = *state_->verdict;
  }
  if (!answered) {
    std::unique_lock lock(state_->mutex);
    const std::optional<std::string> first = state_->first_end;
    lock.unlock();
    found = state_->new_search().without_store(first, "nothing came in time");
  }
  Loss out;
  out.code = found.code;
  out.cause = found.cause;
  out.rank = found.rank;
  out.status = found.status;
  const std::string place = "rank " + std::to_string(self.rank) + ", " + to_text(self.pulse->now());
  out.message = place + ": " + to_text(out.code) + ' ' + found.causes + ". Noticed in " +
                without_code(failed) + ". The same command resumes from the newest checkpoint";
  out.brief = out.message;
  const int64_t reporter = found.said_by_itself() ? int64_t{found.rank == 0} : found.by;
  if (out.rank >= 0 && reporter >= 0 && reporter != self.rank) {
    out.brief = place + ": " + to_text(out.code) + " caused by rank " + std::to_string(out.rank) +
                ", reported by rank " + std::to_string(reporter);
  }
  return out;
}

}  // namespace troupe
