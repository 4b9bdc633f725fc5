#include "troupe/distributed/world/watch.h"

#include <atomic>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kPatience = 5s;  // for a store that may not answer
constexpr std::string_view kSurvivor = "lost ";

double unix_seconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

std::string one_digit(double x) {
  std::ostringstream os;
  os.precision(1);
  os << std::fixed << x;
  return os.str();
}

// The heartbeat that a rank posts once a second.
struct Beat {
  int64_t count = 0;
  double time = 0;  // by its own clock
  RankStatus status;
  double age = 0;        // of `status`, in seconds
  bool waiting = false;  // for other ranks
};

std::string beat_text(const Beat& b) {
  std::ostringstream os;
  os.precision(17);
  os << b.count << ' ' << b.time << ' ' << b.status.done << ' ' << static_cast<int>(b.status.phase)
     << ' ' << b.status.unit << ' ' << b.status.units << ' ' << b.status.microbatch << ' '
     << b.status.stage << ' ' << b.status.stages << ' ' << b.age << ' ' << b.waiting;
  return os.str();
}

std::optional<Beat> beat_of(const std::optional<std::string>& text) {
  if (!text) return {};
  Beat b;
  int phase = 0;
  std::istringstream in(*text);
  in >> b.count >> b.time >> b.status.done >> phase >> b.status.unit >> b.status.units >>
      b.status.microbatch >> b.status.stage >> b.status.stages >> b.age >> b.waiting;
  if (!in) return {};
  b.status.phase = static_cast<Phase>(phase);
  return b;
}

// "all_reduce of ranks 0, 1: E6001 closed" without the code, which the message already has.
std::string without_code(std::string text) {
  const std::string code = to_text(Code::kRankLost) + ' ';
  const size_t at = text.find(code);
  return at == std::string::npos ? text : text.erase(at, code.size());
}

enum class Found { kNothing, kSaid, kEnded, kStopped, kSilent, kHung };

struct News {
  Found found = Found::kNothing;
  std::string words = {};
  Code code = Code::kRankLost;  // kSaid: that it ended with
  std::optional<Beat> beat = {};
};

}  // namespace

struct Watch::State {
  State(Self with, std::unique_ptr<KeyValueStore> with_store)
      : self(std::move(with)), store(std::move(with_store)) {}

  const Self self;
  const Process here = this_process();
  const std::unique_ptr<KeyValueStore> store;  // used by the thread only
  int64_t count = 0;                           // heartbeats so far; likewise

  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> task;  // queued for the thread
  bool stop = false, ended = false;
  std::atomic<bool> peer_ended = false;

  void run();
  void beat();
  void look_for_ends();
  bool on_thread(std::function<void()> f);  // false: timed out
  void post_end(const std::string& text);

  bool is_here(int64_t rank) const;
  bool has_ended(int64_t rank) const;
  bool stands_still(int64_t rank) const;
  std::optional<Beat> last_beat(int64_t rank);
  News look_at(int64_t rank, bool& store_reachable);
  std::vector<News> look();
  std::string report_of(int64_t rank, const News& news) const;
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
    if (steady_clock::now() >= next) {
      next = steady_clock::now() + self.beat;
      lock.unlock();
      beat();
      lock.lock();
      continue;
    }
    changed.wait_until(lock, next);
  }
  ended = true;
  changed.notify_all();
}

void Watch::State::beat() {
  const RankStatus status = self.pulse->now();
  try {
    store->post(beat_key(self.rank),
                beat_text(Beat{.count = ++count,
                               .time = unix_seconds(),
                               .status = status,
                               .age = static_cast<double>(steady_now() - status.since) * 1e-9,
                               .waiting = self.pulse->waiting()}));
  } catch (const Error&) {  // the store is gone: the next collective reports it
  }
  if (!peer_ended) look_for_ends();
}

// Where a launcher looks after the ranks, one that ended since it had lost another counts for
// nothing: the other may be this one, which the launcher then ends, and names.
void Watch::State::look_for_ends() {
  for (int64_t r = 0; r < self.size; ++r) {
    if (r == self.rank) continue;
    if (self.all ? self.all->of(r).ended_by_itself() : has_ended(r)) peer_ended = true;
  }
  try {
    const std::optional<std::string> first = store->peek(kFirstEnd);
    const auto words = [&] { return store->peek("end/" + *first).value_or(""); };
    if (first && !(self.all && words().starts_with(kSurvivor))) peer_ended = true;
  } catch (const Error&) {
    // On this machine its process decides.
    if (self.first_serves && self.rank != 0 && !is_here(0)) peer_ended = true;
  }
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

void Watch::State::post_end(const std::string& text) {
  on_thread([this, text] {
    try {
      store->post("end/" + std::to_string(self.rank), text);
      store->claim(kFirstEnd, std::to_string(self.rank));
    } catch (const Error&) {  // no peer can read it
    }
  });
}

bool Watch::State::is_here(int64_t rank) const {
  const auto r = static_cast<size_t>(rank);
  return r < self.processes.size() && self.processes[r].machine == here.machine;
}

bool Watch::State::has_ended(int64_t rank) const {
  if (self.all && self.all->of(rank).ended()) return true;
  if (!is_here(rank)) return false;
  return troupe::has_ended(self.processes[static_cast<size_t>(rank)].id);
}

bool Watch::State::stands_still(int64_t rank) const {
  if (!is_here(rank)) return false;
  const char state = state_of(self.processes[static_cast<size_t>(rank)].id);
  return state == 'T' || state == 't';
}

// The current status if the launcher shares the pulse, else the last heartbeat.
std::optional<Beat> Watch::State::last_beat(int64_t rank) {
  std::optional<Beat> out = beat_of(store->peek(beat_key(rank)));
  if (self.all) {
    if (!out) out.emplace();
    const Pulse& pulse = self.all->of(rank);
    out->status = pulse.now();
    out->age = static_cast<double>(steady_now() - out->status.since) * 1e-9;
    out->waiting = pulse.waiting();
  }
  return out;
}

News Watch::State::look_at(int64_t rank, bool& store_reachable) {
  News out;
  try {
    out.beat = last_beat(rank);
    out.words = store->peek("end/" + std::to_string(rank)).value_or("");
  } catch (const Error&) {
    store_reachable = false;
  }
  if (!store_reachable && self.first_serves && rank == 0) out.found = Found::kEnded;
  if (out.words.starts_with(kSurvivor)) return out;
  if (!out.words.empty()) {
    out.found = Found::kSaid;
    const size_t end = out.words.find(' ');  // after the code
    out.code = code_of(out.words.substr(0, end)).value_or(Code::kBrokenContract);
    out.words.erase(0, end + 1);
  } else if (has_ended(rank)) {
    out.found = Found::kEnded;
  } else if (stands_still(rank)) {
    out.found = Found::kStopped;
  }
  return out;
}

// Polls until one rank's state is certain, at most three heartbeats; returns what is known of all.
std::vector<News> Watch::State::look() {
  const auto end = steady_clock::now() + 3 * self.beat + 200ms;
  std::vector<News> first, now;
  bool store_reachable = true, certain = false;
  while (true) {
    now.assign(static_cast<size_t>(self.size), {});
    for (int64_t r = 0; r < self.size; ++r) {
      if (r == self.rank) continue;
      News& news = now[static_cast<size_t>(r)] = look_at(r, store_reachable);
      certain |= news.found != Found::kNothing;
    }
    if (first.empty()) first = now;
    if (certain || steady_clock::now() >= end) break;
    std::this_thread::sleep_for(50ms);
  }
  if (certain || !store_reachable) return now;
  for (size_t r = 0; r < now.size(); ++r) {
    const std::optional<Beat>&was = first[r].beat, is = now[r].beat;
    if (static_cast<int64_t>(r) == self.rank || !now[r].words.empty()) continue;
    // A process of this machine exists however rarely it is scheduled; another rank must have sent
    // a heartbeat since the first look.
    const bool beats = is && (!was || is->count > was->count || is_here(static_cast<int64_t>(r)));
    if (!beats) now[r].found = Found::kSilent;
    if (beats && !is->waiting) now[r].found = Found::kHung;
  }
  return now;
}

// "rank 1 of 4 exited without a message; it was in step 8, forward 3/8, last heartbeat 0.4 s ago".
std::string Watch::State::report_of(int64_t rank, const News& news) const {
  std::string out = "rank " + std::to_string(rank) + " of " + std::to_string(self.size);
  const bool there = news.found == Found::kHung || news.found == Found::kStopped;
  switch (news.found) {
    case Found::kSaid: return out + " failed: " + news.words;
    case Found::kEnded: out += " exited without a message"; break;
    case Found::kStopped: out += " is stopped (SIGSTOP)"; break;
    case Found::kSilent: out += " has no heartbeat"; break;
    default: out += " makes no progress"; break;
  }
  if (!news.beat) return out + "; its last status is unknown";
  out.append(there ? "; it is in " : "; it was in ").append(to_text(news.beat->status));
  if (there) return out + " since " + one_digit(news.beat->age) + " s";
  if (news.beat->count == 0) return out;
  const double ago = std::max(unix_seconds() - news.beat->time, 0.0);
  return out + ", last heartbeat " + one_digit(ago) + " s ago";
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
  state_->post_end(to_text(code) + ' ' + text);
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
  state_->post_end(std::string(kSurvivor) + failed);
  const auto news = std::make_shared<std::vector<News>>();
  const auto reporter = std::make_shared<int64_t>(-1);
  const bool answered = state_->on_thread([state = state_, news, reporter] {
    *news = state->look();
    try {
      const std::string mine = std::to_string(state->self.rank);
      *reporter = number_of_peer(state->store->claim("reporter", mine), "the rank that tells");
    } catch (const std::exception&) {  // no store: the first of those that are there
    }
  });
  const Self& self = state_->self;
  Loss out;
  const std::string place = "rank " + std::to_string(self.rank) + ", " + to_text(self.pulse->now());
  std::string causes;
  for (size_t r = 0; answered && r < news->size(); ++r) {
    const News& n = (*news)[r];
    if (n.found == Found::kNothing) {
      if (*reporter < 0) *reporter = static_cast<int64_t>(r);
      continue;
    }
    const bool hung = n.found == Found::kHung || n.found == Found::kStopped;
    if (out.rank < 0) {
      out.rank = static_cast<int64_t>(r);
      out.code = hung ? Code::kRankHung : Code::kRankLost;
      out.cause = n.found == Found::kSaid ? n.code : out.code;
      if (n.beat) out.status = n.beat->status;
    }
    if (!causes.empty()) causes += "; ";
    causes += state_->report_of(static_cast<int64_t>(r), n);
  }
  if (causes.empty()) {
    causes = answered ? "all ranks are alive: a connection between two of them broke"
                      : "the rank at fault is unknown: the store does not answer";
  }
  out.message = place + ": " + to_text(out.code) + ' ' + causes + ". Noticed in " +
                without_code(failed) + ". The same command resumes from the newest checkpoint";
  out.brief = out.message;
  if (out.rank >= 0 && *reporter >= 0 && *reporter != self.rank) {
    out.brief = place + ": " + to_text(out.code) + " caused by rank " + std::to_string(out.rank) +
                ", reported by rank " + std::to_string(*reporter);
  }
  return out;
}

}  // namespace troupe
