#include "troupe/plan/timeline.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/schedule/text.h"

namespace troupe {
namespace {

// A channel of a pipeline: when each value was sent, its receive posted, and it was there.
struct Channel {
  std::vector<double> sent = {}, posted = {}, there = {};
};

// What the ranks of a schedule wait for in each other.
class Traffic {
 public:
  Traffic(size_t ranks, const StepWork& work) : work_(work), updates_(ranks, 0) {}

  struct Key {
    int from, to;
    bool gradients;
    auto operator<=>(const Key&) const = default;
  };
  // Whether the next send may go, and from when on.
  std::optional<double> next_send(const Key& key, double now) {
    const Channel& c = channels_[key];
    const auto depth = static_cast<size_t>(work_.depth);
    if (c.sent.size() < depth) return now;
    const size_t before = c.sent.size() - depth;
    if (before >= c.there.size()) return {};
    return std::max(now, c.there[before]);
  }
  void send(const Key& key, double when, double seconds) {
    channels_[key].sent.push_back(when);
    travel(channels_[key], seconds);
  }
  // The number of the value that will come.
  size_t post(const Key& key, double when, double seconds) {
    Channel& c = channels_[key];
    c.posted.push_back(when);
    travel(c, seconds);
    return c.posted.size() - 1;
  }
  std::optional<double> arrival(const Key& key, size_t number) {
    const Channel& c = channels_[key];
    if (number >= c.there.size()) return {};
    return c.there[number];
  }

  // The n-th update of a rank, n from 0; when all ranks have come to it.
  void come_to_update(size_t rank, size_t n, double when) {
    if (updates_[rank] > n) return;
    updates_[rank] = n + 1;
    if (latest_.size() <= n) latest_.resize(n + 1, 0);
    latest_[n] = std::max(latest_[n], when);
  }
  std::optional<double> update(size_t n) const {
    const auto [least, most] = std::ranges::minmax(updates_);
    if (least <= n) return {};
    return latest_[n];
  }

 private:
  static void travel(Channel& c, double seconds) {
    while (c.there.size() < std::min(c.sent.size(), c.posted.size())) {
      const size_t n = c.there.size();
      const double free = n == 0 ? 0 : c.there[n - 1];
      c.there.push_back(std::max({c.sent[n], c.posted[n], free}) + seconds);
    }
  }

  const StepWork& work_;
  std::map<Key, Channel> channels_;
  std::vector<size_t> updates_;
  std::vector<double> latest_;
};

// Owners of the chunks that a rank runs; -1 for others.
std::vector<int> own_owners(const std::vector<Action>& list, const StepWork& work) {
  const std::vector<int> owner = owners(work);
  std::vector<int> out(owner.size(), -1);
  for (const Action& a : list) {
    const bool forward = a.kind == Kind::kForward || a.kind == Kind::kForwardLight;
    if (forward) out[static_cast<size_t>(a.chunk)] = owner[static_cast<size_t>(a.chunk)];
  }
  return out;
}

bool frees(const std::vector<Action>& list) {
  return std::ranges::any_of(list, [](const Action& a) { return a.kind == Kind::kFree; });
}

// One rank on its way through two steps.
class Runner {
 public:
  Runner(const std::vector<Action>& list, const StepWork& work, const StepCosts& costs, int rank)
      : list_(list),
        work_(work),
        costs_(costs),
        owner_(own_owners(list, work)),
        rank_(rank),
        holdings_(costs, owner_, frees(list), work.depth) {}

  bool done() const { return step_ == 2; }
  Runner(const Runner&) = delete;  // holdings_ looks at owner_
  Runner& operator=(const Runner&) = delete;

  // As far as the others allow; whether it moved at all.
  bool go_on(Traffic& traffic) {
    bool moved = false;
    while (!done()) {
      if (at_ == list_.size()) {
        end_step();
      } else if (!issue(list_[at_], traffic)) {
        break;
      }
      moved = true;
    }
    return moved;
  }
  RankTimeline result() && {
    for (TimeSlot& s : out_.slots) s.begin -= begin_, s.end -= begin_;
    out_.seconds = now_ - begin_;
    out_.peak = holdings_.peak();
    return std::move(out_);
  }

 private:
  void end_step() {
    at_ = 0;
    if (++step_ == 2) return;
    out_ = {};
    begin_ = now_;
  }

  bool issue(const Action& a, Traffic& traffic) {
    if (a.kind == Kind::kSend && !send(a, traffic)) return false;
    if (a.kind == Kind::kUpdate) return update(a, traffic);
    if (!wait_for_value(a, traffic)) return false;
    if (a.kind == Kind::kReduce) wait_for_sums(a);
    ++at_;
    holdings_.issue(a);
    const ChunkCosts& c = costs_.chunks[static_cast<size_t>(std::max(a.chunk, 0))];
    switch (a.kind) {
      case Kind::kForward:
      case Kind::kForwardLight: compute(a, c.forward, c.exchange, c.tokens); break;
      case Kind::kBackward: compute(a, c.backward, c.exchange, c.tokens_back); break;
      case Kind::kBackwardInput:
        compute(a, c.backward - c.weight, c.exchange, c.tokens_back);
        break;
      case Kind::kBackwardWeight: compute(a, c.weight, 0, 0); break;
      case Kind::kGather: gathered_[a.chunk] = beside(a, all_of(a, &ChunkCosts::gather)); break;
      case Kind::kReduce:
        pass(Lane::kCompute, a, stretched(all_of(a, &ChunkCosts::laying)), out_.compute);
        begin_sum(a);
        break;
      case Kind::kRecv: {
        const Traffic::Key key{a.peer, rank_, !runs(a.chunk)};
        posted_[{a.chunk, a.microbatch}] = {key, traffic.post(key, now_, c.send)};
        break;
      }
      default: break;
    }
    return true;
  }

  void note(Lane lane, const Action& a, double begin, double end) {
    if (end > begin) out_.slots.push_back({lane, a, begin, end});
  }
  void pass(Lane lane, const Action& a, double seconds, double& account) {
    note(lane, a, now_, now_ + seconds);
    now_ += seconds;
    account += seconds;
  }
  void wait_until(const Action& a, double when, double& account) {
    if (when > now_) pass(Lane::kWait, a, when - now_, account);
  }
  void compute(const Action& a, double seconds, double exchange, double tokens) {
    const auto gathered = gathered_.find(owner_[static_cast<size_t>(a.chunk)]);
    if (gathered != gathered_.end()) wait_until(a, gathered->second, out_.exposed);
    pass(Lane::kExchange, a, exchange, out_.exchange);
    pass(Lane::kExchange, a, tokens, out_.tokens);
    pass(Lane::kCompute, a, stretched(seconds), out_.compute);
  }
  // What is begun now, of so many seconds alone, with the collectives that are under way.
  double stretched(double seconds) const {
    const double window = std::max(lane_free_ - now_, 0.0), slower = 1 + costs_.contention;
    const double done = window / slower;  // of it, when they are over
    return seconds <= done ? seconds * slower : seconds + window - done;
  }
  double all_of(const Action& a, double ChunkCosts::*what) const {
    return sum_of(costs_, owner_, a.chunk, what);
  }
  // First the sums between owners, where there are several. Then each owner's part is summed
  // between replicas.
  void begin_sum(const Action& a) {
    const bool last = a.microbatch < 0 || a.microbatch == work_.microbatches - 1;
    const double owners = all_of(a, &ChunkCosts::reduce),
                 replicas = last ? all_of(a, &ChunkCosts::replicate) : 0;
    if (owners == 0) return sums_.push_back({a, beside(a, replicas)});
    sums_.push_back({a, beside(a, owners), replicas});
  }
  // A collective: when it is over.
  double beside(const Action& a, double seconds) {
    const double begin = std::max(now_, lane_free_);
    lane_free_ = begin + seconds;
    note(Lane::kCollective, a, begin, lane_free_);
    out_.collectives += seconds;
    return lane_free_;
  }
  void wait_for_sums(const Action& a) {
    for (; !sums_.empty(); sums_.pop_front()) {
      const Sum& sum = sums_.front();
      wait_until(a, sum.end, out_.exposed);
      holdings_.finish_sum();
      if (sum.replicas > 0) replica_sums_.push_back(beside(sum.action, sum.replicas));
    }
  }
  // Of one owner, where its reduction is under way: of those before it, too, which end earlier.
  void wait_for_sum_of(const Action& a) {
    while (std::ranges::any_of(sums_, [&](const Sum& s) { return s.action.chunk == a.chunk; })) {
      const Sum sum = sums_.front();
      wait_until(a, sum.end, out_.exposed);
      holdings_.finish_sum();
      if (sum.replicas > 0) replica_sums_.push_back(beside(sum.action, sum.replicas));
      sums_.pop_front();
    }
  }
  bool runs(int chunk) const { return owner_[static_cast<size_t>(chunk)] >= 0; }
  bool send(const Action& a, Traffic& traffic) {
    const Traffic::Key key{rank_, a.peer, runs(a.chunk)};
    const std::optional<double> when = traffic.next_send(key, now_);
    if (!when) return false;
    wait_until(a, *when, out_.bubble);
    traffic.send(key, now_, costs_.chunks[static_cast<size_t>(a.chunk)].send);
    return true;
  }
  // Waits for the value that a computation needs from another rank.
  bool wait_for_value(const Action& a, Traffic& traffic) {
    const bool back = a.kind == Kind::kBackward || a.kind == Kind::kBackwardInput;
    if (!back && a.kind != Kind::kForward && a.kind != Kind::kForwardLight) return true;
    const auto posted = posted_.find({a.chunk + (back ? 1 : 0), a.microbatch});
    if (posted == posted_.end()) return true;
    const auto& [key, number] = posted->second;
    const std::optional<double> when = traffic.arrival(key, number);
    if (!when) return false;
    wait_until(a, *when, out_.bubble);
    posted_.erase(posted);
    return true;
  }
  // Seconds of one owner's update: its part of the rank's.
  double update_of(int chunk) const {
    double all = 0;
    for (size_t c = 0; c < owner_.size(); ++c) {
      if (owner_[c] >= 0) all += costs_.chunks[c].update;
    }
    const double own = sum_of(costs_, owner_, chunk, &ChunkCosts::update);
    return all > 0 ? costs_.update * own / all : 0;
  }
  // An update beside backward: it waits for its sums and for the update before, backward does not
  // wait for it.
  void update_beside(const Action& a) {
    wait_until(a, updated_, out_.update);
    holdings_.issue(a);
    const double begin = now_;
    updated_ = begin + update_of(a.chunk);
    beside_ += updated_ - begin;
    note(Lane::kCollective, a, begin, updated_);
    ++at_;
  }
  bool update(const Action& a, Traffic& traffic) {
    if (a.chunk >= 0) {
      wait_for_sum_of(a);
      update_beside(a);
      return true;
    }
    if (!std::exchange(updating_, true)) {
      holdings_.issue(a);
      wait_for_sums(a);
      for (const double when : std::exchange(replica_sums_, {})) wait_until(a, when, out_.exposed);
    }
    if (a.chunk < 0) {
      const auto n = static_cast<size_t>(step_);
      traffic.come_to_update(static_cast<size_t>(rank_), n, now_);
      const std::optional<double> when = traffic.update(n);
      if (!when) return false;
      wait_until(a, *when, out_.bubble);
    }
    updating_ = false;
    ++at_;
    wait_until(a, updated_, out_.update);
    pass(Lane::kCompute, a, std::max(costs_.update - std::exchange(beside_, 0), 0.0), out_.update);
    return true;
  }

  const std::vector<Action>& list_;
  const StepWork& work_;
  const StepCosts& costs_;
  const std::vector<int> owner_;
  int rank_;
  Holdings holdings_;
  size_t at_ = 0;
  int step_ = 0;
  bool updating_ = false;  // waits for other ranks
  double now_ = 0, begin_ = 0, lane_free_ = 0;
  double updated_ = 0, beside_ = 0;  // when the last update in backward is over; seconds of these
  std::map<int, double> gathered_;   // by chunk: when its gather is over
  struct Posted {
    Traffic::Key key;
    size_t number;  // of its channel
  };
  std::map<std::pair<int, int>, Posted> posted_;  // chunk, microbatch: not yet used
  struct Sum {
    Action action;
    double end;
    double replicas = 0;  // seconds of the sum between replicas, which follows
  };
  std::deque<Sum> sums_;
  std::vector<double> replica_sums_;  // when each is over
  RankTimeline out_;
};

}  // namespace

std::vector<RankTimeline> timeline_of(const Schedule& schedule, const StepWork& work,
                                      const std::vector<StepCosts>& costs) {
  TROUPE_CHECK(costs.size() == schedule.size(), "costs of", costs.size(), "ranks for",
               schedule.size());
  std::deque<Runner> ranks;
  for (const StepCosts& of_rank : costs) {
    TROUPE_CHECK(static_cast<int>(of_rank.chunks.size()) == work.chunks, "costs of",
                 of_rank.chunks.size(), "chunks for", work.chunks);
    ranks.emplace_back(schedule[ranks.size()], work, of_rank, static_cast<int>(ranks.size()));
  }
  Traffic traffic(schedule.size(), work);
  for (bool moved = true; moved;) {
    moved = false;
    for (Runner& rank : ranks) moved |= rank.go_on(traffic);
  }
  std::vector<RankTimeline> out;
  for (Runner& rank : ranks) {
    TROUPE_CHECK(rank.done(), "a rank waits for ever in\n" + to_text(schedule));
    out.push_back(std::move(rank).result());
  }
  return out;
}

std::vector<RankTimeline> timeline_of(const Schedule& schedule, const StepWork& work,
                                      const StepCosts& costs) {
  return timeline_of(schedule, work, std::vector<StepCosts>(schedule.size(), costs));
}

double step_seconds(const std::vector<RankTimeline>& ranks) {
  double out = 0;
  for (const RankTimeline& rank : ranks) out = std::max(out, rank.seconds);
  return out;
}

}  // namespace troupe
