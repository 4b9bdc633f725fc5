#include "troupe/distributed/world/meeting.h"

#include <optional>
#include <thread>

#include "troupe/core/check.h"
#include "troupe/distributed/group/rank_list.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kFirstPause{1};
constexpr char kList = '=', kFault = '!';  // what LEAD/met begins with

class Arrival {
 public:
  Arrival(Board& board, const MeetingOptions& options) : board_(board), o_(options) {}

  Meeting lead() {
    board_.post("lead", o_.process);
    name_ = o_.process + '/';
    come();
    try {
      Meeting out{.name = name_, .processes = *poll([this] {
                                   return board_.peek_all(keys_of_ranks(name_ + "here/", o_.size));
                                 })};
      board_.post(name_ + "met", kList + joined(out.processes));
      return out;
    } catch (const Error& e) {
      leave(e.what());
      throw;
    } catch (...) {
      leave(o_.place + ": " + to_text(Code::kNoMeeting) +
            " rank 0 left before all ranks were there");
      throw;
    }
  }

  Meeting follow() {
    try {
      return *poll([this] { return look(); });
    } catch (const Error& e) {
      if (e.code() != Code::kRankLost) throw;
      fail(Code::kNoMeeting, o_.place,
           "whoever served the meeting left before all ranks were there, rank 0 of this run or of "
           "another at the same port (MASTER_PORT):",
           e.what());
    }
  }

 private:
  // What `look` finds, or throws with who is missing.
  template <class Look>
  auto poll(Look&& look) -> decltype(look()) {
    const auto end = Clock::now() + o_.timeout;
    for (Milliseconds pause = kFirstPause;; pause = next_pause(pause, o_.size)) {
      if (o_.check) o_.check();
      if (auto found = look()) return found;
      if (Clock::now() >= end) fail(Code::kNoMeeting, o_.place, why_late());
      std::this_thread::sleep_for(pause);
    }
  }

  std::optional<Meeting> look() {
    const std::optional<std::string> lead = board_.peek("lead");
    if (!lead) return {};
    if (name_ != *lead + '/') {
      name_ = *lead + '/';
      come();
    }
    const std::optional<std::string> met = board_.peek(name_ + "met");
    if (!met || other_) return {};
    if (met->starts_with(kFault)) throw Error(met->substr(1), Code::kNoMeeting);
    return Meeting{.name = name_, .processes = parted(met->substr(1))};
  }

  // Where the board is older than this meeting, another one may be this rank of an earlier meeting.
  void come() {
    const std::string there = board_.claim(name_ + "here/" + std::to_string(o_.rank), o_.process);
    other_ = there != o_.process;
    if (!other_ || !o_.first_serves) return;
    fail(Code::kNoMeeting, o_.place, "rank", o_.rank,
         "is there already, as process " + there +
             ": another run meets at this port. Give each its own MASTER_PORT");
  }

  std::string why_late() {
    std::vector<int64_t> missing;
    if (name_.empty()) missing = {0};
    for (int64_t r = 0; r < o_.size && !name_.empty(); ++r) {
      const bool is_here =
          r == o_.rank || board_.peek(name_ + "here/" + std::to_string(r)).has_value();
      if (!is_here) missing.push_back(r);
    }
    return "of " + std::to_string(o_.size) + " ranks, rank(s) " + rank_list(missing) +
           " did not arrive within " + std::to_string(o_.timeout.count() / 1000) +
           " s (run.start_timeout)";
  }

  // With this rank the board goes, where it brought it: the others hear of it first.
  void leave(const std::string& why) {
    board_.post(name_ + "met", kFault + why);
    if (o_.first_serves && o_.size > 1) {
      std::this_thread::sleep_for(2 * longest_pause(o_.size));
    }
  }

  Board& board_;
  const MeetingOptions& o_;
  std::string name_;    // of the lead that this rank has answered
  bool other_ = false;  // is this rank of that meeting
};

}  // namespace

Meeting meet(Board& board, const MeetingOptions& options) {
  Arrival arrival(board, options);
  return options.rank == 0 ? arrival.lead() : arrival.follow();
}

}  // namespace troupe
