#include "troupe/plan/timeline.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/schedule/text.h"

namespace troupe {
namespace {

using Transfer = std::tuple<int, int, int, int>;  // from, to, chunk, microbatch
using Arrivals = std::map<Transfer, std::deque<double>>;

bool frees(const std::vector<Action>& list) {
  return std::ranges::any_of(list, [](const Action& a) { return a.kind == Kind::kFree; });
}

// One rank on its way through two steps.
class Runner {
 public:
  Runner(const std::vector<Action>& list, const StepWork& work, const StepCosts& costs,
         const std::vector<int>& owner, int rank)
      : list_(list),
        work_(work),
        costs_(costs),
        owner_(owner),
        rank_(rank),
        holdings_(costs, owner, frees(list)) {}

  bool done() const { return step_ == 2; }
  // As far as its receives allow; whether it moved at all.
  bool go_on(Arrivals& arrivals) {
    bool moved = false;
    while (!done()) {
      if (at_ == list_.size()) {
        end_step();
      } else if (!issue(list_[at_], arrivals)) {
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

  bool issue(const Action& a, Arrivals& arrivals) {
    if (a.kind == Kind::kRecv && !receive(a, arrivals)) return false;
    if (a.kind == Kind::kReduce) wait_for_sums(a);
    ++at_;
    holdings_.issue(a);
    const ChunkCosts& c = costs_.chunks[static_cast<size_t>(std::max(a.chunk, 0))];
    switch (a.kind) {
      case Kind::kForward:
      case Kind::kForwardLight: compute(a, c.forward, c.exchange); break;
      case Kind::kBackward: compute(a, c.backward, c.exchange); break;
      case Kind::kBackwardInput: compute(a, c.backward / 2, c.exchange); break;
      case Kind::kBackwardWeight: compute(a, c.backward / 2, 0); break;
      case Kind::kGather: gathered_[a.chunk] = beside(a, all_of(a, &ChunkCosts::gather)); break;
      case Kind::kReduce:
        pass(Lane::kCompute, a, stretched(all_of(a, &ChunkCosts::laying)), out_.compute);
        begin_sum(a);
        break;
      case Kind::kSend: send(a, c.send, arrivals); break;
      case Kind::kUpdate:
        wait_for_sums(a);
        for (const double when : std::exchange(replica_sums_, {}))
          wait_until(a, when, out_.exposed);
        pass(Lane::kCompute, a, costs_.update, out_.update);
        break;
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
  void compute(const Action& a, double seconds, double exchange) {
    const auto gathered = gathered_.find(owner_[static_cast<size_t>(a.chunk)]);
    if (gathered != gathered_.end()) wait_until(a, gathered->second, out_.exposed);
    pass(Lane::kExchange, a, exchange, out_.exchange);
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
  // Sums between owners, where there are several, then those of what they own between replicas.
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
  void send(const Action& a, double seconds, Arrivals& arrivals) {
    double& free = link_free_[a.peer];
    free = std::max(now_, free) + seconds;
    arrivals[{rank_, a.peer, a.chunk, a.microbatch}].push_back(free);
  }
  bool receive(const Action& a, Arrivals& arrivals) {
    const auto arrival = arrivals.find({a.peer, rank_, a.chunk, a.microbatch});
    if (arrival == arrivals.end() || arrival->second.empty()) return false;
    wait_until(a, arrival->second.front(), out_.bubble);
    arrival->second.pop_front();
    return true;
  }

  const std::vector<Action>& list_;
  const StepWork& work_;
  const StepCosts& costs_;
  const std::vector<int>& owner_;
  int rank_;
  Holdings holdings_;
  size_t at_ = 0;
  int step_ = 0;
  double now_ = 0, begin_ = 0, lane_free_ = 0;
  std::map<int, double> gathered_;   // by chunk: when its gather is over
  std::map<int, double> link_free_;  // by peer
  struct Sum {
    Action action;
    double end;
    double replicas = 0;  // seconds of what follows then, between replicas
  };
  std::deque<Sum> sums_;
  std::vector<double> replica_sums_;  // when each is over
  RankTimeline out_;
};

}  // namespace

std::vector<RankTimeline> timeline_of(const Schedule& schedule, const StepWork& work,
                                      const StepCosts& costs) {
  TROUPE_CHECK(static_cast<int>(costs.chunks.size()) == work.chunks, "- costs of",
               costs.chunks.size(), "chunks for", work.chunks);
  const std::vector<int> owner = owners(work);
  std::vector<Runner> ranks;
  for (const std::vector<Action>& list : schedule) {
    ranks.emplace_back(list, work, costs, owner, static_cast<int>(ranks.size()));
  }
  Arrivals arrivals;
  for (bool moved = true; moved;) {
    moved = false;
    for (Runner& rank : ranks) moved |= rank.go_on(arrivals);
  }
  std::vector<RankTimeline> out;
  for (Runner& rank : ranks) {
    TROUPE_CHECK(rank.done(), "- a receive has no send in\n" + to_text(schedule));
    out.push_back(std::move(rank).result());
  }
  return out;
}

double step_seconds(const std::vector<RankTimeline>& ranks) {
  double out = 0;
  for (const RankTimeline& rank : ranks) out = std::max(out, rank.seconds);
  return out;
}

}  // namespace troupe
