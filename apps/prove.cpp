// ./dev prove: proves the step of every layout of up to 8 ranks (troupe/schedule/prove.h), and for
// small worlds takes every order in which ranks can go.
//   prove [EACH]     every EACH-th of the layouts; default 1: all
#include "troupe/schedule/prove.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>

#include "troupe/schedule/interleavings.h"
#include "troupe/train/forecast/proof_cases.h"

namespace {

using troupe::ProofCase;

constexpr int kMostRanks = 8;
constexpr int kExploredRanks = 4;
constexpr int64_t kMostStates = 2000;

template <class... Values>
void say(const char* format, const Values&... values) {
  char text[1024];
  std::snprintf(text, sizeof(text), format, values...);
  std::cerr << text;
}

struct Count {
  int64_t layouts = 0, lists = 0, events = 0, faulty = 0, explored = 0, states = 0;
  std::map<int, int64_t> by_room = {};
};

// Every order of a small world, where it has no more than kMostStates: they end as the one run does.
void explore(const ProofCase& c, int room, Count& count) {
  const troupe::WorldEvents events = troupe::world_events({c.schedule}, c.work, c.world);
  const troupe::Interleavings all = troupe::interleavings(events, room, kMostStates);
  if (!all.whole) return;
  ++count.explored;
  count.states += all.states;
  if (all.all_end && all.ends == 1) return;
  ++count.faulty;
  say("%s: orders end in %lld states\n", c.name.c_str(), static_cast<long long>(all.ends));
}

void prove_one(const ProofCase& c, Count& count) {
  const troupe::Proof proof = troupe::prove({c.schedule}, c.work, c.world);
  ++count.layouts;
  count.lists += static_cast<int64_t>(c.world.ranks.size());
  count.events += proof.events;
  if (!proof.faults.empty()) {
    ++count.faulty;
    say("%s:\n  %s\n", c.name.c_str(), proof.faults.front().c_str());
    return;
  }
  ++count.by_room[proof.capacity];
  if (c.world.ranks.size() <= kExploredRanks) explore(c, proof.capacity, count);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t each = argc > 1 ? std::atoll(argv[1]) : 1;
  if (each < 1) {
    say("%s\n", "prove [EACH]: every EACH-th layout, 1 or more");
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  Count count;
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    troupe::for_each_proof_case(ranks, each, [&](ProofCase& c) { prove_one(c, count); });
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const auto n = [](int64_t x) { return static_cast<long long>(x); };
  say("%lld layouts of 1 to %d ranks, %lld lists, %lld events: %lld with a fault\n",
      n(count.layouts), kMostRanks, n(count.lists), n(count.events), n(count.faulty));
  for (const auto& [room, layouts] : count.by_room) {
    say("%lld end with room for %d messages a channel%s\n", n(layouts), room,
        room == 0 ? ": each send waits for its receive" : "");
  }
  say("every order of %lld small ones: %lld states; %.1f s in all\n", n(count.explored),
      n(count.states), seconds.count());
  return count.faulty == 0 ? 0 : 1;
}
