#include "troupe/distributed/status/flight_table.h"

#include <gtest/gtest.h>

#include <string>

namespace troupe {
namespace {

Moment phase_at(double ago, const std::string& phase) {
  return {.ago_s = ago, .step = 7, .phase = phase, .event = "begin"};
}
Moment reduce_at(double ago, const std::string& event, int64_t number,
                 const std::string& operation = "all_reduce") {
  return {.ago_s = ago,
          .step = 7,
          .phase = "reduce 1/2",
          .event = event,
          .operation = operation,
          .group = "3 ranks from 0",
          .number = number,
          .bytes = 64};
}

// Rank 2 comes 1.5 s late to the first collective, and not at all to the second.
FlightRecord with_a_late_rank() {
  return {{{0,
            {reduce_at(12, "issue", 1), reduce_at(12, "wait", 1), reduce_at(10.5, "waited", 1),
             reduce_at(9, "issue", 2), reduce_at(9, "wait", 2)}},
           {1,
            {reduce_at(11.75, "issue", 1), reduce_at(11.75, "wait", 1),
             reduce_at(10.5, "waited", 1), reduce_at(0, "issue", 2)}},
           {2,
            {reduce_at(10.5, "issue", 1), reduce_at(10.5, "wait", 1), reduce_at(10.5, "waited", 1),
             phase_at(10.25, "forward 3/8")}}}};
}

std::string line_with(const std::string& text, const std::string& what) {
  const size_t at = text.find(what);
  if (at == std::string::npos) return "none with " + what + " in\n" + text;
  const size_t begin = text.rfind('\n', at) + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}

TEST(FlightTable, SaysOfEachRankWhatItWaitsInAndForWhom) {
  const std::string table = flight_table(with_a_late_rank());
  EXPECT_EQ(line_with(table, "waits in"),
            "0     7     reduce 1/2   9.00 s   waits in all_reduce 2 of 3 ranks from 0: rank 2 has "
            "not come");
  EXPECT_EQ(line_with(table, "forward 3/8"), "2     7     forward 3/8  10.25 s  began the phase");
}

TEST(FlightTable, HasALineForEachCollectiveAndAColumnForEachRank) {
  const std::string table = flight_table(with_a_late_rank());
  EXPECT_EQ(line_with(table, "last to come"),
            "ago      step  collective                      rank 0        rank 1  rank 2  last to "
            "come");
  EXPECT_EQ(line_with(table, "after the first"),
            "12.00 s  7     all_reduce 1 of 3 ranks from 0  1.50 s        1.25 s  0.0 ms  rank 2, "
            "1.50 s after the first");
  EXPECT_NE(
      table.find("9.00 s   7     all_reduce 2 of 3 ranks from 0  waits 9.00 s  issued  -       "
                 "rank 2 has not come\n"),
      std::string::npos)
      << table;
}

TEST(FlightTable, NamesARankThatIssuedAnother) {
  FlightRecord record = with_a_late_rank();
  record.ranks[2].moments.push_back(reduce_at(8, "issue", 2, "all_gather"));
  EXPECT_NE(flight_table(record).find("rank 2 issued all_gather"), std::string::npos);
}

TEST(FlightTable, LeavesOutTheOldestButThoseThatARankWaitsIn) {
  FlightRecord record;
  RankFlight& rank = record.ranks.emplace_back();
  rank.moments.push_back(reduce_at(100, "wait", 1));
  for (int64_t n = 2; n < 12; ++n) {
    const auto ago = static_cast<double>(90 - n);
    rank.moments.push_back(reduce_at(ago, "wait", n));
    rank.moments.push_back(reduce_at(ago, "waited", n));
  }
  const std::string table = flight_table(record, {.most_collectives = 3});
  EXPECT_NE(table.find("all_reduce 1 of"), std::string::npos) << table;
  EXPECT_EQ(table.find("all_reduce 9 of"), std::string::npos) << table;
  EXPECT_NE(table.find("all_reduce 11 of"), std::string::npos) << table;
  EXPECT_NE(table.find("8 more older collectives are not shown"), std::string::npos) << table;
}

TEST(FlightTable, OfRanksThatDidNothingThereIsATableToo) {
  const FlightRecord record{{{3, {}}}};
  EXPECT_EQ(flight_table(record),
            "rank  step  phase  ago  last\n3     -     -      -    nothing\nno collective is "
            "recorded\n");
  EXPECT_NE(flight_table({}).find("no collective"), std::string::npos);
}

}  // namespace
}  // namespace troupe
