#include "troupe/distributed/world/all_gather_texts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/torch/table_store.h"

namespace troupe {
namespace {

using Texts = std::vector<std::string>;

using testing::Table;
using testing::TableStore;
using namespace std::chrono_literals;

struct AllGatherTexts : ::testing::Test {
  std::shared_ptr<Table> table = std::make_shared<Table>();

  std::future<std::vector<std::string>> give(int64_t rank, const std::string& text,
                                             int64_t ended = -1,
                                             std::optional<std::chrono::milliseconds> timeout = 20s,
                                             std::chrono::milliseconds silence = 600s) const {
    return std::async(std::launch::async, [=, table = table] {
      TableStore store(table);
      return all_gather_texts(store,
                              {.rank = rank,
                               .size = 3,
                               .topic = "t",
                               .round = "t/0",
                               .timeout = timeout,
                               .silence = silence,
                               .has_ended = [=](int64_t r) { return r == ended; }},
                              text);
    });
  }
  static std::string error_of(std::future<std::vector<std::string>> texts) {
    try {
      texts.get();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kRankLost);
      return e.what();
    }
    return "";
  }
};

TEST_F(AllGatherTexts, AllGetAllInRankOrder) {
  auto two = give(2, ""), zero = give(0, "a:1"), one = give(1, "12:");
  const std::vector<std::string> all = {"a:1", "12:", ""};
  EXPECT_EQ(zero.get(), all);
  EXPECT_EQ(one.get(), all);
  EXPECT_EQ(two.get(), all);
}

TEST_F(AllGatherTexts, WhoEndsBeforeItHasWrittenIsToldAtOnce) {
  const std::string message = "the exchange of \"t\": E6001 rank 2 has ended";
  auto zero = give(0, "a", 2), one = give(1, "b", 2);
  EXPECT_EQ(error_of(std::move(zero)), message);
  EXPECT_EQ(error_of(std::move(one)), message);
}

TEST_F(AllGatherTexts, WhatWasWrittenBeforeTheEndIsTaken) {
  TableStore store(table);
  post_marked(store, "texts/t/2", "t/0", packed_texts({{2, "last"}}));
  auto zero = give(0, "a", 2), one = give(1, "b", 2);
  const std::vector<std::string> all = {"a", "b", "last"};
  EXPECT_EQ(zero.get(), all);
  EXPECT_EQ(one.get(), all);
}

TEST_F(AllGatherTexts, OneOfAnotherMachineThatEndsIsToldByItsWord) {
  auto one = give(1, "b");
  TableStore(table).post(kFirstEnd, "2");
  EXPECT_NE(error_of(std::move(one)).find("rank 2 has ended"), std::string::npos);
}

TEST_F(AllGatherTexts, WithoutRank0ThereIsNoList) {
  EXPECT_NE(error_of(give(1, "b", 0)).find("rank 0 has ended"), std::string::npos);
}

TEST_F(AllGatherTexts, TheFirstThatWroteNothingIsNamedWhenTheTimeIsOver) {
  auto zero = give(0, "a", -1, 100ms), two = give(2, "c", -1, 100ms);
  EXPECT_NE(error_of(std::move(zero)).find("nothing came from rank 1"), std::string::npos);
  EXPECT_NE(error_of(std::move(two)).find("nothing came from rank 1"), std::string::npos);
}

// Three ranks without a time limit, of which rank 2 writes last.
struct Patient : AllGatherTexts {
  static constexpr auto kSilence = 1s;

  std::future<std::vector<std::string>> wait(int64_t rank, int64_t ended = -1) const {
    return give(rank, std::to_string(rank), ended, {}, kSilence);
  }
  // For so long these ranks send heartbeats.
  void beat(const std::vector<int64_t>& ranks, std::chrono::milliseconds time) const {
    TableStore store(table);
    const auto end = std::chrono::steady_clock::now() + time;
    for (int count = 0; std::chrono::steady_clock::now() < end; ++count) {
      for (const int64_t r : ranks) store.post(beat_key(r), std::to_string(count));
      std::this_thread::sleep_for(20ms);
    }
  }
};

TEST_F(Patient, WhoHasAHeartbeatMayTakeAnyTime) {
  auto zero = wait(0), one = wait(1);
  beat({0, 1, 2}, 4 * kSilence);
  EXPECT_EQ(zero.wait_for(0s), std::future_status::timeout);
  EXPECT_EQ(one.wait_for(0s), std::future_status::timeout);
  auto two = wait(2);
  beat({0, 1, 2}, 300ms);
  const std::vector<std::string> all = {"0", "1", "2"};
  EXPECT_EQ(zero.get(), all);
  EXPECT_EQ(one.get(), all);
  EXPECT_EQ(two.get(), all);
}

TEST_F(Patient, WhoHasNoHeartbeatAnyMoreIsReported) {
  auto zero = wait(0), one = wait(1);
  beat({0, 1}, 3 * kSilence);
  EXPECT_EQ(zero.wait_for(0s), std::future_status::ready);
  EXPECT_NE(error_of(std::move(zero)).find("rank 2 has sent no heartbeat"), std::string::npos);
  // The others wait for rank 0, who is there and ends by what it found.
  EXPECT_EQ(one.wait_for(0s), std::future_status::timeout);
  EXPECT_NE(error_of(std::move(one)).find("rank 0 has sent no heartbeat"), std::string::npos);
}

TEST_F(Patient, WhoEndsItselfWaitsForNobody) {
  EXPECT_NE(error_of(wait(0, 0)).find("this rank ends"), std::string::npos);
  EXPECT_NE(error_of(wait(1, 1)).find("this rank ends"), std::string::npos);
}

// Rounds of `size` ranks that are threads, one after another.
struct ManyRanks {
  explicit ManyRanks(int64_t count) : size(count) {}

  using TextOf = std::function<std::string(int64_t rank, int64_t round)>;
  void gather(int64_t rounds, const TextOf& text) const {
    std::vector<std::jthread> threads;
    for (int64_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([this, rank, rounds, &text] {
        TableStore store(table);
        for (int64_t round = 0; round < rounds; ++round) {
          const auto all = all_gather_texts(store,
                                            {.rank = rank,
                                             .size = size,
                                             .topic = "t",
                                             .round = "t/" + std::to_string(round),
                                             .timeout = 300s,
                                             .has_ended = [](int64_t) { return false; }},
                                            text(rank, round));
          ASSERT_EQ(std::ssize(all), size);
          for (int64_t r = 0; r < size; ++r) {
            ASSERT_EQ(all[static_cast<size_t>(r)], text(r, round)) << rank << ", round " << round;
          }
        }
      });
    }
  }

  int64_t size;
  std::shared_ptr<Table> table = std::make_shared<Table>();
};

TEST(ManyRanksGather, TheStoreHoldsAKeyARankHoweverManyRoundsThereWere) {
  for (const int64_t size : {1, 2, 17, 18, 64}) {
    const ManyRanks ranks(size);
    ranks.gather(20, [](int64_t rank, int64_t round) {
      return std::to_string(rank * 100 + round);  // all of them are shorter than a piece
    });
    EXPECT_EQ(std::ssize(ranks.table->texts), size);
    EXPECT_EQ(ranks.table->written, size * 20);  // one a rank and round
  }
}

TEST(ManyRanksGather, WhereAllSayTheSameNoValueGrowsWithTheRanks) {
  size_t longest = 0;
  for (const int64_t size : {64, 3, 1}) {
    const ManyRanks ranks(size);
    ranks.gather(2, [](int64_t rank, int64_t) { return std::string(rank == 0 ? "folder" : ""); });
    longest = std::max(longest, ranks.table->longest);
    EXPECT_LT(ranks.table->longest, 60u) << size << " ranks";
  }
  EXPECT_GT(longest, 0u);
  std::vector<TextOfRank> most;
  for (int64_t rank = 0; rank < 3072; ++rank) most.push_back({rank, rank == 0 ? "folder" : ""});
  EXPECT_LT(packed_texts(most).size(), 60u);
}

TEST(ManyRanksGather, NoValueIsLongerThanAPieceAndPiecesAreUsedAgain) {
  const ManyRanks ranks(40);
  ranks.gather(3, [](int64_t rank, int64_t round) {
    const int64_t length = round == 1 ? 10 : 30'000 + rank;
    return std::string(static_cast<size_t>(length), static_cast<char>('a' + rank % 26));
  });
  EXPECT_LE(ranks.table->longest, kLongestPiece);
  // Of all, 1.2 MB: three pieces; of ranks 1 and 2, whose part of the tree is of 17 and of 8.
  EXPECT_EQ(std::ssize(ranks.table->texts), 40 + 37 + 3 + 1 + 1);
}

TEST(Texts, ArePackedByWhatTheySay) {
  const std::vector<TextOfRank> texts = {{0, "a"}, {1, ""}, {2, "a"}, {3, "a"}, {6, ""}};
  EXPECT_EQ(unpacked_texts(packed_texts(texts), 7), texts);
  EXPECT_TRUE(unpacked_texts("", 7).empty());
  EXPECT_THROW(unpacked_texts(packed_texts(texts), 6), Error);                    // a rank too many
  EXPECT_THROW(unpacked_texts(joined(Texts{"a", "0-1", "b", "1-1"}), 7), Error);  // twice
  for (const char* runs : {"0", "2-1", "0-9999999999", "-1-2", "x-y"}) {
    EXPECT_THROW(unpacked_texts(joined(Texts{"a", runs}), 7), Error) << runs;
  }
  EXPECT_THROW(unpacked_texts(joined(Texts{"a"}), 7), Error);
}

TEST(Texts, AreJoinedAndPartedWhateverTheyHold) {
  const std::vector<std::string> texts = {"", "3:abc", std::string("\0:\n", 3), ":", "x"};
  EXPECT_EQ(parted(joined(texts)), texts);
  EXPECT_TRUE(parted("").empty());
  EXPECT_THROW(parted("5:abc"), Error);
  EXPECT_THROW(parted("abc"), Error);
}

}  // namespace
}  // namespace troupe
