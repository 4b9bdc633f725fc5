#include "troupe/distributed/world/all_gather_texts.h"

#include <algorithm>
#include <map>
#include <thread>

#include "troupe/core/check.h"
#include "troupe/distributed/world/store_key.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

std::string text_key(const TextAllGather& g, const std::string& of) {
  return "texts/" + short_name(g.topic, kLongestName) + '/' + of;
}

std::vector<int64_t> children_of(int64_t rank, int64_t size) {
  std::vector<int64_t> out;
  const int64_t first = rank * kTreeWidth + 1;
  for (int64_t r = first; r < std::min(size, first + kTreeWidth); ++r) out.push_back(r);
  return out;
}

// Where a rank writes: what it has gathered of its part of the tree.
std::string key_of(const TextAllGather& g, int64_t rank) {
  return text_key(g, rank == 0 ? "all" : std::to_string(rank));
}

[[noreturn]] void fail_unpacked() {
  fail(Code::kRankLost, "the store", "holds what no rank wrote, instead of texts of ranks");
}

// What is written under a key with its mark: the text, or the number of its pieces.
struct Marked {
  std::string text;
  int64_t pieces = 0;
};

std::optional<Marked> head_of(const std::optional<std::string>& value, const std::string& mark) {
  if (!value) return {};
  std::vector<std::string> parts = parted(*value);
  if (parts.size() != 3) fail_unpacked();
  if (parts[0] != mark) return {};
  return Marked{std::move(parts[2]), number_of_peer(parts[1], "a number of pieces")};
}

std::string text_of(KeyValueStore& store, const std::string& key, Marked head) {
  if (head.pieces == 0) return std::move(head.text);
  std::string out;
  for (int64_t i = 0; i < head.pieces; ++i) {
    const std::optional<std::string> piece = store.peek(key + '/' + std::to_string(i));
    if (!piece) fail_unpacked();
    out += *piece;
  }
  return out;
}

bool has_written(KeyValueStore& store, const TextAllGather& g, int64_t rank) {
  return head_of(store.peek(key_of(g, rank)), g.round).has_value();
}

// This rank's part of the tree, whose texts come in any order.
class Subtree {
 public:
  Subtree(const TextAllGather& g, const std::string& mine)
      : g_(g), missing_(children_of(g.rank, g.size)), texts_{{g.rank, mine}} {}

  // Takes what came since the last call; true once all is there, and written for the others.
  bool write(KeyValueStore& store) {
    if (written_) return true;
    std::erase_if(missing_, [&](int64_t child) {
      const std::optional<std::string> text = peek_marked(store, key_of(g_, child), g_.round);
      if (!text) return false;
      for (TextOfRank& of : unpacked_texts(*text, g_.size)) texts_.push_back(std::move(of));
      return true;
    });
    if (!missing_.empty()) return false;
    post_marked(store, key_of(g_, g_.rank), g_.round, packed_texts(texts_));
    return written_ = true;
  }

  const std::vector<int64_t>& missing() const { return missing_; }

 private:
  const TextAllGather& g_;
  std::vector<int64_t> missing_;
  std::vector<TextOfRank> texts_;
  bool written_ = false;
};

std::optional<std::vector<std::string>> look(KeyValueStore& store, const TextAllGather& g,
                                             Subtree& subtree) {
  if (!subtree.write(store)) return {};
  const std::optional<std::string> all = peek_marked(store, key_of(g, 0), g.round);
  if (!all) return {};
  std::vector<TextOfRank> texts = unpacked_texts(*all, g.size);
  if (std::ssize(texts) != g.size) fail_unpacked();
  std::vector<std::string> out;
  for (TextOfRank& of : texts) out.push_back(std::move(of.text));
  return out;
}

std::vector<int64_t> ended_ranks(KeyValueStore& store, const TextAllGather& g) {
  std::vector<int64_t> out;
  for (int64_t r = 0; r < g.size; ++r) {
    if (g.has_ended(r)) out.push_back(r);
  }
  if (const auto first = store.peek(kFirstEnd)) out.push_back(first_end_rank(*first));
  return out;
}

// The beats of those that this rank waits for: its children, and rank 0.
class Beats {
 public:
  explicit Beats(const TextAllGather& g) : g_(g), next_(Clock::now()) {}

  // A rank whose heartbeat has not changed for `silence`. Polls seldom, so it is reported up to a
  // quarter of that late.
  std::optional<int64_t> silent(KeyValueStore& store, std::vector<int64_t> awaited) {
    const Clock::time_point now = Clock::now();
    if (now < next_) return {};
    next_ = now + g_.silence / 4;
    if (g_.rank != 0) awaited.push_back(0);
    for (const int64_t r : awaited) {
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

// Down the tree: to a child from which nothing came, until there is none.
int64_t first_missing(KeyValueStore& store, const TextAllGather& g) {
  int64_t rank = 0;
  while (true) {
    const std::vector<int64_t> children = children_of(rank, g.size);
    const auto next =
        std::ranges::find_if(children, [&](int64_t r) { return !has_written(store, g, r); });
    if (next == children.end()) return rank;
    rank = *next;
  }
}

std::string runs_of(const std::vector<int64_t>& ranks) {
  std::string out;
  for (size_t i = 0, end = 0; i < ranks.size(); i = end) {
    for (end = i + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    if (!out.empty()) out += ',';
    out += std::to_string(ranks[i]) + '-' + std::to_string(ranks[end - 1]);
  }
  return out;
}

// f(rank) for each rank of a text that runs_of() made.
template <class F>
void for_each_rank(const std::string& runs, int64_t size, F&& f) {
  for (size_t at = 0; at < runs.size();) {
    const size_t dash = runs.find('-', at), end = std::min(runs.find(',', at), runs.size());
    if (dash == std::string::npos || dash > end) fail_unpacked();
    const int64_t first = number_of_peer(runs.substr(at, dash - at), "a rank");
    const int64_t last = number_of_peer(runs.substr(dash + 1, end - dash - 1), "a rank");
    if (first < 0 || last < first || last >= size) fail_unpacked();
    for (int64_t r = first; r <= last; ++r) f(r);
    at = end + 1;
  }
}

}  // namespace

std::string packed_texts(const std::vector<TextOfRank>& texts) {
  std::map<std::string, std::vector<int64_t>> ranks_of;
  for (const TextOfRank& of : texts) ranks_of[of.text].push_back(of.rank);
  std::vector<std::string> parts;
  for (auto& [text, ranks] : ranks_of) {
    std::ranges::sort(ranks);
    parts.push_back(text);
    parts.push_back(runs_of(ranks));
  }
  return joined(parts);
}

std::vector<TextOfRank> unpacked_texts(const std::string& text, int64_t size) {
  const std::vector<std::string> parts = parted(text);
  if (parts.size() % 2 != 0) fail_unpacked();
  std::vector<TextOfRank> out;
  for (size_t i = 0; i < parts.size(); i += 2) {
    for_each_rank(parts[i + 1], size, [&](int64_t rank) {
      if (std::ssize(out) == size) fail_unpacked();
      out.push_back({rank, parts[i]});
    });
  }
  std::ranges::sort(out, {}, &TextOfRank::rank);
  if (std::ranges::adjacent_find(out, {}, &TextOfRank::rank) != out.end()) fail_unpacked();
  return out;
}

void post_marked(KeyValueStore& store, const std::string& key, const std::string& mark,
                 const std::string& text) {
  if (text.size() <= kLongestInline) return store.post(key, joined({mark, "0", text}));
  size_t pieces = 0;
  for (size_t at = 0; at < text.size(); at += kLongestPiece) {
    store.post(key + '/' + std::to_string(pieces++), text.substr(at, kLongestPiece));
  }
  store.post(key, joined({mark, std::to_string(pieces), ""}));
}

std::optional<std::string> peek_marked(KeyValueStore& store, const std::string& key,
                                       const std::string& mark) {
  std::optional<Marked> head = head_of(store.peek(key), mark);
  if (!head) return {};
  return text_of(store, key, *std::move(head));
}

std::vector<std::string> all_gather_texts(KeyValueStore& store, const TextAllGather& g,
                                          const std::string& mine) {
  const std::string what = "the exchange of \"" + g.topic + '"';
  Subtree subtree(g, mine);
  const Clock::time_point begin = Clock::now();
  Beats beats(g);
  for (Milliseconds pause{1};; pause = next_pause(pause, g.size)) {
    // Before the look: what they wrote last is seen.
    const std::vector<int64_t> ended = ended_ranks(store, g);
    if (const auto texts = look(store, g, subtree)) return *texts;
    for (const int64_t r : ended) {
      if (r == g.rank) fail(Code::kRankLost, what, "this rank ends");
      if (r != 0 && has_written(store, g, r)) continue;
      fail(Code::kRankLost, what, "rank", r, "has ended");
    }
    if (g.timeout && Clock::now() - begin >= *g.timeout) break;
    if (!g.timeout) {
      if (const std::optional<int64_t> r = beats.silent(store, subtree.missing())) {
        fail(Code::kRankLost, what, "rank", *r, "has sent no heartbeat for",
             g.silence.count() / 1000, "s");
      }
    }
    std::this_thread::sleep_for(pause);
  }
  fail(Code::kRankLost, what, "nothing came from rank", first_missing(store, g), "in",
       g.timeout->count() / 1000, "s (run.hang_timeout)");
}

}  // namespace troupe
