#include "troupe/distributed/world/loss_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/torch/table_store.h"

namespace troupe {
namespace {

using std::chrono::milliseconds;
using testing::Table;
using testing::TableStore;
using namespace std::chrono_literals;

constexpr milliseconds kBetweenBeats{1000}, kTick{50};
constexpr int64_t kRanksOfHost = 8;

// The ranks of a run, eight a machine, in simulated time: each sends heartbeats, and looks for a
// lost one from the moment at which its collective failed.
class ManyWatched {
 public:
  explicit ManyWatched(int64_t size, bool first_serves = false) : size_(size) {
    for (int64_t r = 0; r < size; ++r) {
      Rank rank;
      rank.beat_at = begin_ + (r * 7 % 20) * kTick;
      rank.notices = LossSearch::Time::max();
      rank.search = std::make_unique<LossSearch>(LossSearch::Self{
          .rank = r,
          .size = size,
          .beat = kBetweenBeats,
          .first_serves = first_serves,
          .see = [this, r](int64_t of) { return see(r, of); },
          .is_here = [r](int64_t of) { return of / kRanksOfHost == r / kRanksOfHost; }});
      ranks_.push_back(std::move(rank));
    }
    run([this] { return now_ >= begin_ + 2 * kBetweenBeats; });
  }

  void kill(int64_t rank) { ranks_[at(rank)].alive = false; }
  void hang(int64_t rank) { ranks_[at(rank)].waits = false; }
  void stop(int64_t rank) { ranks_[at(rank)].stopped = true; }
  void lose_store() { table_->gone = true; }
  void say(const Verdict& why) { store_.claim(kFirstEnd, to_text(why)); }
  int64_t reporter() const { return first_end_of(table_->texts.at(kFirstEnd)).rank; }
  milliseconds since_the_loss() const {
    return std::chrono::duration_cast<milliseconds>(now_ - noticed_);
  }

  // All others notice within 0.3 s, the last rank first, and look until all know.
  void notice() {
    noticed_ = now_;
    before_ = table_->requests - of_beats_;
    for (int64_t r = 0; r < size_; ++r) {
      if (works(r) && ranks_[at(r)].waits) {
        ranks_[at(r)].notices = now_ + (r == size_ - 1 ? 0 : 1 + r % 6) * kTick;
      }
    }
  }
  void run(const std::function<bool()>& until) {
    for (; !until(); now_ += kTick) {
      for (int64_t r = 0; r < size_; ++r) {
        if (works(r)) turn(r);
      }
    }
  }
  bool all_know() const {
    for (int64_t r = 0; r < size_; ++r) {
      if (looks(r) && !ranks_[at(r)].verdict) return false;
    }
    return true;
  }
  void look() {
    run([this] { return all_know() || since_the_loss() > 60s; });
  }

  // Of those that look; all have the same.
  Verdict verdict() const {
    std::optional<Verdict> out;
    for (int64_t r = 0; r < size_; ++r) {
      if (!looks(r)) continue;
      const std::optional<Verdict>& own = ranks_[at(r)].verdict;
      EXPECT_TRUE(own.has_value()) << "rank " << r;
      if (!own) continue;
      if (!out) out = own;
      EXPECT_EQ(own->rank, out->rank) << "rank " << r;
      EXPECT_EQ(own->causes, out->causes) << "rank " << r;
    }
    return out.value_or(Verdict{});
  }
  // Beside the heartbeats, since the loss.
  int64_t requests() const { return table_->requests - of_beats_ - before_; }
  // N + O(log N).
  int64_t most_requests() const {
    return size_ + 16 * std::bit_width(static_cast<uint64_t>(size_));
  }
  const Table& table() const { return *table_; }

 private:
  struct Rank {
    bool alive = true, waits = true, stopped = false;
    int64_t count = 0;
    LossSearch::Time beat_at, notices;
    std::unique_ptr<LossSearch> search;
    std::optional<std::string> first_end;
    std::optional<Verdict> verdict;
  };

  static size_t at(int64_t rank) { return static_cast<size_t>(rank); }
  bool works(int64_t r) const { return ranks_[at(r)].alive && !ranks_[at(r)].stopped; }
  bool looks(int64_t r) const {
    return works(r) && ranks_[at(r)].notices != LossSearch::Time::max();
  }
  Seen see(int64_t from, int64_t of) const {
    if (of / kRanksOfHost != from / kRanksOfHost) return Seen::kNothing;
    if (!ranks_[at(of)].alive) return Seen::kEnded;
    return ranks_[at(of)].stopped ? Seen::kStopped : Seen::kNothing;
  }

  // As the watch's thread does it.
  void turn(int64_t r) {
    Rank& rank = ranks_[at(r)];
    const bool looking = now_ >= rank.notices && !rank.verdict;
    const bool beats = now_ >= rank.beat_at;
    if (beats) beat(r, rank);
    if (!looking || (!beats && now_ < rank.search->next())) return;
    rank.verdict = rank.search->step(store_, now_, rank.first_end);
  }
  void beat(int64_t r, Rank& rank) {
    rank.beat_at += kBetweenBeats;
    Beat out{.count = ++rank.count,
             .status = {.done = 7, .phase = Phase::kForward},
             .waiting = rank.waits,
             .lost = now_ >= rank.notices};
    const int64_t first = r / kRanksOfHost * kRanksOfHost;
    for (int64_t of = first; of < std::min(size_, first + kRanksOfHost); ++of) {
      if (const Seen how = see(r, of); how != Seen::kNothing) out.seen.push_back({of, how});
    }
    const int64_t before = table_->requests;
    try {
      store_.post(beat_key(r), beat_text(out));
      rank.first_end = store_.peek(kFirstEnd);
    } catch (const Error&) {
    }
    of_beats_ += table_->requests - before;
  }

  const int64_t size_;
  const LossSearch::Time begin_ = LossSearch::Time(1h);
  LossSearch::Time now_ = begin_, noticed_ = begin_;
  std::shared_ptr<Table> table_ = std::make_shared<Table>();
  TableStore store_{table_};
  int64_t of_beats_ = 0, before_ = 0;
  std::vector<Rank> ranks_;
};

constexpr int64_t kSizes[] = {8, 64, 512, 3072};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct LossSearchTest : ::testing::TestWithParam<int64_t> {
  void check_costs(const ManyWatched& ranks) const {
    EXPECT_LE(ranks.requests(), ranks.most_requests());
    EXPECT_LE(ranks.since_the_loss(), 10s);
    EXPECT_LE(ranks.table().longest, size_t{1} << 20);
    EXPECT_LE(ranks.table().longest_key, 100u);
  }
  int64_t size() const { return GetParam(); }
  std::string of_size() const { return " of " + std::to_string(size()); }
};

TEST_P(LossSearchTest, F84_AKilledRankIsNamedByItsNeighborsToAll) {
  ManyWatched ranks(size());
  ranks.kill(5);
  ranks.notice();
  ranks.look();
  const Verdict verdict = ranks.verdict();
  EXPECT_EQ(verdict.rank, 5);
  EXPECT_EQ(verdict.code, Code::kRankLost);
  EXPECT_EQ(verdict.status.step(), 8);
  EXPECT_TRUE(verdict.causes.starts_with("rank 5" + of_size() +
                                         " exited without a message; it was in step 8, forward, "
                                         "last heartbeat "))
      << verdict.causes;
  EXPECT_LE(ranks.since_the_loss(), 4s);  // a heartbeat of its machine, and one of each rank
  check_costs(ranks);
}

TEST_P(LossSearchTest, F85_AStoppedRankIsNamedByItsNeighborsToAll) {
  ManyWatched ranks(size());
  ranks.stop(5);
  ranks.notice();
  ranks.look();
  const Verdict verdict = ranks.verdict();
  EXPECT_EQ(verdict.rank, 5);
  EXPECT_EQ(verdict.cause, Code::kRankHung);
  EXPECT_TRUE(has(verdict.causes, "is stopped (SIGSTOP); it is in step 8, forward since"))
      << verdict.causes;
  check_costs(ranks);
}

TEST_P(LossSearchTest, F85_ARankThatNeitherMovesNorWaitsIsNamed) {
  ManyWatched ranks(size());
  ranks.hang(4);
  ranks.run([more = 30]() mutable { return more-- == 0; });  // its heartbeat says so
  ranks.notice();
  ranks.look();
  const Verdict verdict = ranks.verdict();
  EXPECT_EQ(verdict.rank, 4);
  EXPECT_EQ(verdict.code, Code::kRankHung);
  EXPECT_TRUE(verdict.causes.starts_with("rank 4" + of_size() + " makes no progress"));
  check_costs(ranks);
}

TEST_P(LossSearchTest, AWholeMachineIsNamedByItsMissingHeartbeats) {
  if (size() <= kRanksOfHost) GTEST_SKIP() << "that is all ranks";
  for (const int64_t first : {int64_t{0}, size() / 2}) {
    ManyWatched ranks(size());
    for (int64_t r = first; r < first + kRanksOfHost; ++r) ranks.kill(r);
    ranks.notice();
    ranks.look();
    const Verdict verdict = ranks.verdict();
    EXPECT_EQ(verdict.rank, first);
    EXPECT_EQ(verdict.cause, Code::kRankLost);
    for (int64_t r = first; r < first + kRanksOfHost; ++r) {
      EXPECT_TRUE(
          has(verdict.causes, "rank " + std::to_string(r) + of_size() + " has no heartbeat"))
          << verdict.causes;
    }
    EXPECT_FALSE(has(verdict.causes, "rank " + std::to_string(first + kRanksOfHost) + of_size()));
    check_costs(ranks);
  }
}

TEST_P(LossSearchTest, F86_Rank0IsNamedWhereverTheStoreIs) {
  for (const bool serves : {false, true}) {
    ManyWatched ranks(size(), serves);
    ranks.kill(0);
    if (serves) ranks.lose_store();
    ranks.notice();
    ranks.look();
    const Verdict verdict = ranks.verdict();
    EXPECT_EQ(verdict.rank, 0) << serves;
    EXPECT_EQ(verdict.cause, Code::kRankLost) << serves;
    EXPECT_TRUE(verdict.causes.starts_with("rank 0" + of_size() + " exited without a message"))
        << verdict.causes;
    check_costs(ranks);
  }
}

// The last rank notices first, when nobody has said yet that rank 3 is gone, and is gone itself
// before it knows. Where it is alone, those of its machine may find it before they hear of rank 3.
TEST_P(LossSearchTest, ALostReporterIsFollowed) {
  if (size() <= kRanksOfHost) GTEST_SKIP() << "it sees rank 3 itself";
  for (const bool whole_machine : {false, true}) {
    ManyWatched ranks(size());
    ranks.run([more = 16]() mutable { return more-- == 0; });  // 0.2 s before one of its machine
    ranks.kill(3);
    ranks.notice();
    ranks.run([&] { return ranks.since_the_loss() >= 100ms; });
    const int64_t reporter = ranks.reporter();
    ASSERT_EQ(reporter, size() - 1);
    const int64_t first = whole_machine ? size() - kRanksOfHost : reporter;
    for (int64_t r = first; r < size(); ++r) ranks.kill(r);
    ranks.look();
    const Verdict verdict = ranks.verdict();
    EXPECT_NE(verdict.by, reporter);
    EXPECT_TRUE(verdict.rank == 3 || (!whole_machine && verdict.rank == reporter)) << verdict.rank;
    EXPECT_TRUE(verdict.causes.starts_with("rank " + std::to_string(verdict.rank) + of_size() +
                                           " exited without a message"))
        << verdict.causes;
    check_costs(ranks);
  }
}

TEST_P(LossSearchTest, ARankThatSaidWhyIsKnownWithTheFirstRequest) {
  ManyWatched ranks(size());
  ranks.say({.by = 2,
             .rank = 2,
             .cause = Code::kNonFinite,
             .status = {.done = 7},
             .causes = failed_text(2, size(), "E5001 a NaN")});
  ranks.kill(2);
  ranks.notice();
  ranks.look();
  const Verdict verdict = ranks.verdict();
  EXPECT_EQ(verdict.cause, Code::kNonFinite);
  EXPECT_EQ(verdict.causes, "rank 2" + of_size() + " failed: E5001 a NaN");
  EXPECT_EQ(ranks.requests(), size() - 1);
  EXPECT_LE(ranks.since_the_loss(), 400ms);
}

TEST_P(LossSearchTest, NobodyIsAccusedWhereAllAreThere) {
  ManyWatched ranks(size());
  ranks.notice();
  ranks.look();
  const Verdict verdict = ranks.verdict();
  EXPECT_EQ(verdict.rank, -1);
  EXPECT_TRUE(has(verdict.causes, "all ranks are alive"));
  check_costs(ranks);
}

INSTANTIATE_TEST_SUITE_P(Ranks, LossSearchTest, ::testing::ValuesIn(kSizes));

TEST(LossSearch, WithoutTheStoreOfALauncherARankHasItsSystemAlone) {
  const LossSearch search({.rank = 0, .size = 3, .see = [](int64_t r) {
                             return r == 2 ? Seen::kEnded : Seen::kNothing;
                           }});
  EXPECT_EQ(search.without_store({}, "x").rank, 2);
  const Verdict unknown = LossSearch({.rank = 0, .size = 3}).without_store({}, "closed");
  EXPECT_EQ(unknown.rank, -1);
  EXPECT_TRUE(has(unknown.causes, "the store does not answer: closed"));
  // What it read last is known still.
  const Verdict said{.by = 1, .rank = 1, .cause = Code::kNonFinite, .causes = "why"};
  EXPECT_EQ(LossSearch({.rank = 0, .size = 3, .first_serves = true})
                .without_store(to_text(said), "closed")
                .causes,
            "why");
}

TEST(LossSearch, HeartbeatsAndVerdictsAreReadBack) {
  const Beat beat{.count = 3,
                  .time = 12.5,
                  .status = {.done = 7, .phase = Phase::kReduce, .unit = 2, .units = 4},
                  .age = 0.25,
                  .waiting = true,
                  .lost = true,
                  .seen = {{5, Seen::kEnded}, {6, Seen::kStopped}},
                  .code = Code::kNonFinite,
                  .words = "step 8: a  NaN\nof two lines"};
  const std::optional<Beat> read = beat_of(beat_text(beat));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->count, 3);
  EXPECT_EQ(to_text(read->status), to_text(beat.status));
  EXPECT_TRUE(read->waiting && read->lost);
  EXPECT_EQ(read->seen, beat.seen);
  EXPECT_EQ(read->code, beat.code);
  EXPECT_EQ(read->words, beat.words);
  for (const char* text :
       {"", "1 2 3", "1 2 3 99 0 0 0 0 0 0 0 0 0", "1 2 3 1 0 0 0 0 0 0 0 0 9"}) {
    EXPECT_FALSE(beat_of(text)) << text;
  }
  const FirstEnd first = first_end_of(to_text(Verdict{
      .by = 4, .rank = 5, .code = Code::kRankHung, .status = beat.status, .causes = "a: b"}));
  EXPECT_EQ(first.rank, 5);
  ASSERT_TRUE(first.verdict);
  EXPECT_EQ(first.verdict->by, 4);
  EXPECT_EQ(first.verdict->code, Code::kRankHung);
  EXPECT_EQ(to_text(first.verdict->status), to_text(beat.status));
  EXPECT_EQ(first.verdict->causes, "a: b");
  EXPECT_FALSE(first_end_of("17").verdict);
  EXPECT_EQ(first_end_of("17").rank, 17);
  for (const char* text : {"", "x", "1 ", "1 1:2", "1 x"}) {
    EXPECT_THROW(first_end_of(text), Error) << text;
  }
  EXPECT_LE(within_words(std::string(3 * kLongestWords, 'x')).size(), kLongestWords + 4);
}

TEST(LossSearch, SomeOfManyKeysAreReadInFewRequests) {
  const auto table = std::make_shared<Table>();
  TableStore store(table);
  std::vector<std::string> keys;
  for (int64_t r = 0; r < 1024; ++r) {
    keys.push_back(beat_key(r));
    if (r != 700) store.post(keys.back(), std::to_string(r));
  }
  table->requests = 0;
  const auto values = peek_each(store, keys);
  EXPECT_LE(table->requests, 21);  // two a half, and the first
  ASSERT_EQ(values.size(), keys.size());
  for (size_t r = 0; r < keys.size(); ++r) {
    const std::optional<std::string> value = std::to_string(r);
    EXPECT_EQ(values[r], r == 700 ? std::nullopt : value);
  }
}

}  // namespace
}  // namespace troupe
