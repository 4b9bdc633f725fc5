#include "troupe/distributed/world/rendezvous.h"

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
  Arrival(KeyValueStore& store, const RendezvousOptions& options) : store_(store), o_(options) {}

  Rendezvous lead() {
    store_.post("lead", o_.process);
    name_ = o_.process + '/';
    come();
    try {
      Rendezvous out{.name = name_,
                     .processes = *poll([this] {
                       return store_.peek_all(keys_of_ranks(name_ + "here/", o_.size));
                     })};
      store_.post(name_ + "met", kList + joined(out.processes));
      return out;
    } catch (const Error& e) {
      leave(e.what());
      throw;
    } catch (...) {
      leave(o_.place + ": " + to_text(Code::kNoRendezvous) +
            " rank 0 left before all ranks were there");
      throw;
    }
  }

  Rendezvous follow() {
    try {
      return *poll([this] { return look(); });
    } catch (const Error& e) {
      if (e.code() != Code::kRankLost) throw;
      fail(Code::kNoRendezvous, o_.place,
           "whoever served the store left before all ranks were there, rank 0 of this run or of "
           "another at the same port (MASTER_PORT):",
           e.what());
    }
  }

 private:
  // What `look` finds; throws, with the missing ranks, where it finds nothing in time.
  template <class Look>
  auto poll(Look&& look) -> decltype(look()) {
    const auto end = Clock::now() + o_.timeout;
    for (Milliseconds pause = kFirstPause;; pause = next_pause(pause, o_.size)) {
      if (o_.check) o_.check();
      if (auto found = look()) return found;
      if (Clock::now() >= end) fail(Code::kNoRendezvous, o_.place, why_late());
      std::this_thread::sleep_for(pause);
    }
  }

  std::optional<Rendezvous> look() {
    const std::optional<std::string> lead = store_.peek("lead");
    if (!lead) return {};
    if (name_ != *lead + '/') {
      name_ = *lead + '/';
      come();
    }
    const std::optional<std::string> met = store_.peek(name_ + "met");
    if (!met || other_) return {};
    if (met->starts_with(kFault)) throw Error(met->substr(1), Code::kNoRendezvous);
    Rendezvous out{.name = name_, .processes = parted(met->substr(1))};
    met_ranks_ = std::ssize(out.processes);
    if (met_ranks_ == o_.size) return out;
    // In a store that outlives a run it may be an earlier one's list, of fewer ranks or more.
    if (o_.first_serves) fail(Code::kNoRendezvous, o_.place, of_another_size());
    return {};
  }

  std::string of_another_size() const {
    return "rank 0, process " + name_.substr(0, name_.size() - 1) + ", meets " +
           std::to_string(met_ranks_) + " ranks, and rank " + std::to_string(o_.rank) +
           " is one of " + std::to_string(o_.size) +
           ": start all ranks with one WORLD_SIZE, and each run with its own MASTER_PORT";
  }

  // A store that outlives a run may hold this rank's key from an earlier rendezvous.
  void come() {
    const std::string there = store_.claim(name_ + "here/" + std::to_string(o_.rank), o_.process);
    other_ = there != o_.process;
    met_ranks_ = o_.size;
    if (!other_ || !o_.first_serves) return;
    fail(Code::kNoRendezvous, o_.place, "rank", o_.rank,
         "is there already, as process " + there +
             ": another run meets at this port. Give each its own MASTER_PORT");
  }

  std::string why_late() {
    if (met_ranks_ != o_.size) {
      return of_another_size() + "; within " + seconds() + " no other rank 0 came";
    }
    std::vector<int64_t> missing;
    if (name_.empty()) missing = {0};
    for (int64_t r = 0; r < o_.size && !name_.empty(); ++r) {
      const bool is_here =
          r == o_.rank || store_.peek(name_ + "here/" + std::to_string(r)).has_value();
      if (!is_here) missing.push_back(r);
    }
    return "of " + std::to_string(o_.size) + " ranks, rank(s) " + rank_list(missing) +
           " did not arrive within " + seconds();
  }
  std::string seconds() const {
    return std::to_string(o_.timeout.count() / 1000) + " s (run.start_timeout)";
  }

  // If rank 0 serves the store, the store ends with it: others get time to read why.
  void leave(const std::string& why) {
    store_.post(name_ + "met", kFault + why);
    if (o_.first_serves && o_.size > 1) {
      std::this_thread::sleep_for(2 * longest_pause(o_.size));
    }
  }

  KeyValueStore& store_;
  const RendezvousOptions& o_;
  std::string name_;             // of the lead that this rank has answered
  bool other_ = false;           // another process is this rank of that lead
  int64_t met_ranks_ = o_.size;  // how many it met, as far as this rank has seen
};

}  // namespace

Rendezvous rendezvous(KeyValueStore& store, const RendezvousOptions& options) {
  Arrival arrival(store, options);
  return options.rank == 0 ? arrival.lead() : arrival.follow();
}

}  // namespace troupe
