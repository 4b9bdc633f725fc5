#include "troupe/distributed/world/all_gather_texts.h"

#include <map>
#include <thread>

#include "troupe/core/check.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

std::string text_key(const TextAllGather& g, int64_t rank) {
  return g.round + '/' + std::to_string(rank);
}

bool has_written(KeyValueStore& store, const TextAllGather& g, int64_t rank) {
  return store.peek(text_key(g, rank)).has_value();
}

std::optional<std::vector<std::string>> look(KeyValueStore& store, const TextAllGather& g) {
  const std::string prefix = g.round + '/', all = prefix + "all";
  if (g.rank != 0) {
    const std::optional<std::string> found = store.peek(all);
    return found ? std::optional(parted(*found)) : std::nullopt;
  }
  auto texts = store.peek_all(keys_of_ranks(prefix, g.size));
  if (texts) store.post(all, joined(*texts));
  return texts;
}

std::vector<int64_t> ended_ranks(KeyValueStore& store, const TextAllGather& g) {
  std::vector<int64_t> out;
  for (int64_t r = 0; r < g.size; ++r) {
    if (g.has_ended(r)) out.push_back(r);
  }
  if (const auto first = store.peek(kFirstEnd))
    out.push_back(number_of_peer(*first, "the first rank that ended"));
  return out;
}

// The beats of those that this rank waits for: rank 0 for all, the others for rank 0.
class Beats {
 public:
  explicit Beats(const TextAllGather& g) : g_(g), next_(Clock::now()) {}

  // A rank whose heartbeat has not changed for `silence`. Polls seldom, so it is reported up to a
  // quarter of that late.
  std::optional<int64_t> silent(KeyValueStore& store) {
    const Clock::time_point now = Clock::now();
    if (now < next_) return {};
    next_ = now + g_.silence / 4;
    for (int64_t r = 0; r < (g_.rank == 0 ? g_.size : 1); ++r) {
      if (r == g_.rank || (r != 0 && has_written(store, g_, r))) continue;
      const std::optional<std::string> beat = store.peek(beat_key(r));
      const auto [last, first_look] = last_.try_emplace(r, Beat{beat, now});
      if (last->second.text != beat) last->second = {beat, now};
      if (!first_look && now - last->second.since >= g_.silence) return r;
    }
    return {};
  }

 private:
  struct Beat {
    std::optional<std::string> text;
    Clock::time_point since;
  };
  const TextAllGather& g_;
  Clock::time_point next_;
  std::map<int64_t, Beat> last_;
};

}  // namespace

std::vector<std::string> all_gather_texts(KeyValueStore& store, const TextAllGather& g,
                                          const std::string& mine) {
  const std::string what = "the exchange of \"" + g.topic + '"';
  store.post(text_key(g, g.rank), mine);
  const Clock::time_point begin = Clock::now();
  Beats beats(g);
  for (Milliseconds pause{1};; pause = next_pause(pause, g.size)) {
    // Before the look: what they wrote last is seen.
    const std::vector<int64_t> ended = ended_ranks(store, g);
    if (const auto texts = look(store, g)) return *texts;
    for (const int64_t r : ended) {
      if (r == g.rank) fail(Code::kRankLost, what, "this rank ends");
      if (r != 0 && has_written(store, g, r)) continue;
      fail(Code::kRankLost, what, "rank", r, "has ended");
    }
    if (g.timeout && Clock::now() - begin >= *g.timeout) break;
    if (!g.timeout) {
      if (const std::optional<int64_t> r = beats.silent(store)) {
        fail(Code::kRankLost, what, "rank", *r, "has sent no heartbeat for",
             g.silence.count() / 1000, "s");
      }
    }
    std::this_thread::sleep_for(pause);
  }
  int64_t missing = 0;
  while (missing + 1 < g.size && has_written(store, g, missing)) ++missing;
  fail(Code::kRankLost, what, "nothing came from rank", missing, "in", g.timeout->count() / 1000,
       "s (run.hang_timeout)");
}

}  // namespace troupe
