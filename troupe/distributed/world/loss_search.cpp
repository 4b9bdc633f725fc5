#include "troupe/distributed/world/loss_search.h"

#include <algorithm>
#include <bit>
#include <sstream>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/unix_seconds.h"
#include "troupe/distributed/group/rank_list.h"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr auto kSystemPause = 50ms;  // between two looks at processes of this machine: no network
constexpr size_t kTold = 8;          // of so many ranks each has a report, others a number

std::string with_a_digit(double x) {
  std::ostringstream os;
  os.precision(1);
  os << std::fixed << x;
  return os.str();
}

// About log2 N ranks, which a lost host or two do not hold between them.
bool is_first_to_follow(int64_t rank, int64_t size) {
  const auto count = static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(size)));
  return rank % std::max<int64_t>(size / count, 1) == 0;
}

}  // namespace

LossSearch::LossSearch(Self self) : self_(std::move(self)) {}

void LossSearch::know_of_all() {
  beats_.resize(static_cast<size_t>(self_.size));
  found_.resize(static_cast<size_t>(self_.size), Found::kNothing);
}

std::optional<Verdict> LossSearch::step(KeyValueStore& store, Time now,
                                        const std::optional<std::string>& first_end) {
  std::optional<Verdict> out;
  try {
    if (!begun_)
      out = begin(store, now);
    else if (!reports_)
      out = wait(store, now, first_end);
    if (!out && reports_) out = look(store, now);
  } catch (const Error& e) {
    return without_store(first_end, e.what());
  }
  if (!out && turn_ >= kTurns) return without_store({}, "the ranks that look for it are gone too");
  return out;
}

std::optional<Verdict> LossSearch::begin(KeyValueStore& store, Time now) {
  begun_ = true;
  const FirstEnd first =
      first_end_of(store.claim(kFirstEnd, to_text(FirstEnd{.rank = self_.rank})));
  if (first.verdict) return first.verdict;
  reporter_ = first.rank;
  begin_ = now;
  next_ = Time::max();
  if (reporter_ == self_.rank) report_from(now);
  return {};
}

bool LossSearch::takes_over(Time now) const {
  if (self_.see(reporter_) == Seen::kEnded) return true;
  const int turns = is_first_to_follow(self_.rank, self_.size) ? 1 : 2;
  return now - begin_ >= std::chrono::duration_cast<Time::duration>(kTurn * turns * self_.beat);
}

std::optional<Verdict> LossSearch::wait(KeyValueStore& store, Time now,
                                        const std::optional<std::string>& first_end) {
  if (first_end) {
    const FirstEnd first = first_end_of(*first_end);
    if (first.verdict) return first.verdict;
  }
  if (!takes_over(now)) return {};
  const std::string key = "reporter/" + std::to_string(++turn_);
  reporter_ = number_of_peer(store.claim(key, std::to_string(self_.rank)), "the rank that looks");
  begin_ = now;
  if (reporter_ == self_.rank) report_from(now);
  return {};
}

void LossSearch::report_from(Time now) {
  reports_ = true;
  know_of_all();
  begin_ = look_at_ = now;
  pause_ = self_.beat / 16;
}

std::optional<Verdict> LossSearch::look(KeyValueStore& store, Time now) {
  const Time end = begin_ + 3 * self_.beat + 200ms;
  const auto ended_here = [&](int64_t r) {
    return r != self_.rank && !marked(r) && self_.is_here(r) && self_.see(r) != Seen::kNothing;
  };
  bool due = now >= look_at_;
  for (int64_t r = 0; !due && r < self_.size; ++r) due = ended_here(r);
  if (!due) {
    next_ = std::min(now + kSystemPause, look_at_);
    return {};
  }
  const bool last = now >= end;
  read_beats(store, looks_ == 0 || last);
  ++looks_;
  const bool certain = find_certain();
  if (!certain && !last) {
    look_at_ = std::min(now + pause_, end);
    next_ = std::min(now + kSystemPause, look_at_);
    pause_ = std::min(2 * pause_, self_.beat / 2);
    return {};
  }
  if (!certain) find_silent();
  // Another that followed this one, which only seemed to be gone, may have been faster.
  if (const std::optional<std::string> first = store.peek(kFirstEnd)) {
    FirstEnd there = first_end_of(*first);
    if (there.verdict) return there.verdict;
  }
  Verdict out = verdict();
  store.post(kFirstEnd, to_text(out));
  return out;
}

// A rank that was lost before its first heartbeat has none: such are asked for in the first look
// and the last.
void LossSearch::read_beats(KeyValueStore& store, bool all) {
  std::vector<int64_t> ranks;
  for (int64_t r = 0; r < self_.size; ++r) {
    if (r != self_.rank && (all || counts_[static_cast<size_t>(r)] >= 0)) ranks.push_back(r);
  }
  for (size_t at = 0; at < ranks.size(); at += kKeysOfRequest) {
    std::vector<std::string> keys;
    const size_t count = std::min(kKeysOfRequest, ranks.size() - at);
    for (size_t i = 0; i < count; ++i) keys.push_back(beat_key(ranks[at + i]));
    const std::vector<std::optional<std::string>> texts = peek_each(store, keys);
    for (size_t i = 0; i < count; ++i) {
      std::optional<Beat>& beat = beats_[static_cast<size_t>(ranks[at + i])];
      beat.reset();
      if (texts[i]) beat = beat_of(*texts[i]);
      self_.update(ranks[at + i], beat);
    }
  }
  if (!counts_.empty()) return;
  for (const std::optional<Beat>& beat : beats_) counts_.push_back(beat ? beat->count : -1);
}

bool LossSearch::marked(int64_t rank) const {
  const std::optional<Beat>& beat = beats_[static_cast<size_t>(rank)];
  return beat && beat->lost;
}

// What ranks say of themselves, and systems of the processes of their machines.
bool LossSearch::find_certain() {
  std::vector<Seen> seen(beats_.size(), Seen::kNothing);
  for (const std::optional<Beat>& beat : beats_) {
    if (!beat) continue;
    for (const SeenRank& of : beat->seen) {
      if (0 <= of.rank && of.rank < self_.size) seen[static_cast<size_t>(of.rank)] = of.how;
    }
  }
  bool certain = false;
  for (int64_t r = 0; r < self_.size; ++r) {
    const auto at = static_cast<size_t>(r);
    Found& found = found_[at] = Found::kNothing;
    if (r == self_.rank || marked(r)) continue;
    const Seen own = self_.see(r);
    const Seen how = own != Seen::kNothing ? own : seen[at];
    if (beats_[at] && !beats_[at]->words.empty()) {
      found = Found::kSaid;
    } else if (how != Seen::kNothing) {
      found = how == Seen::kEnded ? Found::kEnded : Found::kStopped;
    }
    certain |= found != Found::kNothing;
  }
  return certain;
}

// A process of this machine exists however rarely it is scheduled; another rank must have sent a
// heartbeat since the first look.
void LossSearch::find_silent() {
  for (int64_t r = 0; r < self_.size; ++r) {
    const auto at = static_cast<size_t>(r);
    if (r == self_.rank || marked(r)) continue;
    const std::optional<Beat>& is = beats_[at];
    const bool beats = is && (is->count > counts_[at] || self_.is_here(r));
    if (!beats) found_[at] = Found::kSilent;
    if (beats && !is->waiting) found_[at] = Found::kHung;
  }
}

Verdict LossSearch::verdict() const {
  Verdict out{.by = self_.rank};
  std::vector<int64_t> untold;
  size_t told = 0;
  for (int64_t r = 0; r < self_.size; ++r) {
    const auto at = static_cast<size_t>(r);
    const Found found = found_[at];
    if (found == Found::kNothing) continue;
    if (out.rank < 0) {
      const bool hung = found == Found::kHung || found == Found::kStopped;
      out.rank = r;
      out.code = hung ? Code::kRankHung : Code::kRankLost;
      out.cause = found == Found::kSaid ? beats_[at]->code : out.code;
      if (beats_[at]) out.status = beats_[at]->status;
    }
    if (told++ >= kTold) {
      untold.push_back(r);
      continue;
    }
    if (!out.causes.empty()) out.causes += "; ";
    out.causes += report_of(r);
  }
  if (!untold.empty()) out.causes += "; and so rank(s) " + rank_list(untold);
  if (out.rank < 0) out.causes = "all ranks are alive: a connection between two of them broke";
  out.causes = within_words(out.causes);
  return out;
}

// "rank 1 of 4 exited without a message; it was in step 8, forward 3/8, last heartbeat 0.4 s ago".
std::string LossSearch::report_of(int64_t rank) const {
  const auto at = static_cast<size_t>(rank);
  const Found found = found_[at];
  const std::optional<Beat>& beat = beats_[at];
  std::string out = "rank " + std::to_string(rank) + " of " + std::to_string(self_.size);
  const bool there = found == Found::kHung || found == Found::kStopped;
  switch (found) {
    case Found::kSaid: return failed_text(rank, self_.size, beat->words);
    case Found::kEnded: out += " exited without a message"; break;
    case Found::kStopped: out += " is stopped (SIGSTOP)"; break;
    case Found::kSilent: out += " has no heartbeat"; break;
    default: out += " makes no progress"; break;
  }
  if (!beat) return out + "; its last status is unknown";
  out.append(there ? "; it is in " : "; it was in ").append(to_text(beat->status));
  if (there) return out + " since " + with_a_digit(beat->age) + " s";
  if (beat->count == 0) return out;
  const double ago = std::max(unix_seconds() - beat->time, 0.0);
  return out + ", last heartbeat " + with_a_digit(ago) + " s ago";
}

// The store ends with the rank that serves it.
Verdict LossSearch::without_store(const std::optional<std::string>& first_end,
                                  const std::string& why) const {
  if (first_end) {
    try {
      if (const auto verdict = first_end_of(*first_end).verdict) return *verdict;
    } catch (const Error&) {  // no rank wrote it
    }
  }
  LossSearch of_system(self_);
  of_system.know_of_all();
  const bool first_ended = self_.first_serves && self_.rank != 0;
  for (int64_t r = 0; r < self_.size; ++r) {
    const auto at = static_cast<size_t>(r);
    if (r == self_.rank) continue;
    self_.update(r, of_system.beats_[at]);
    const Seen seen = self_.see(r);
    if (seen == Seen::kEnded) of_system.found_[at] = Found::kEnded;
    if (seen == Seen::kStopped) of_system.found_[at] = Found::kStopped;
  }
  if (first_ended) of_system.found_[0] = Found::kEnded;
  Verdict out = of_system.verdict();
  if (out.rank < 0) out.causes = "the rank at fault is unknown: the store does not answer: " + why;
  // One of those that are left tells, without asking.
  const auto left = std::ranges::find(of_system.found_, Found::kNothing);
  out.by = left - of_system.found_.begin();
  return out;
}

}  // namespace troupe
