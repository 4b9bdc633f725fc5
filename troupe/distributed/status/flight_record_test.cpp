#include "troupe/distributed/status/flight_record.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

TEST(FlightRecord, TellsPhasesAndOperationsInTheirOrder) {
  Pulse pulse;
  pulse.done(7);
  pulse.begin(Phase::kForward, 2, 8);
  const Operation gather{
      .what = Collective::kAllGather, .first = 4, .ranks = 2, .number = 17, .bytes = 640};
  for (const Note note : {Note::kIssue, Note::kWait, Note::kWaited}) pulse.note(note, gather);
  const FlightRecord record = flight_record({&pulse}, 5);
  ASSERT_EQ(record.ranks.size(), 1U);
  EXPECT_EQ(record.ranks[0].rank, 5);
  const std::vector<Moment>& all = record.ranks[0].moments;
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].event, "begin");
  EXPECT_EQ(all[0].operation, "");
  EXPECT_EQ(all[3].ago_s, 0);
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_LE(all[i].ago_s, all[i - 1].ago_s);
    EXPECT_EQ(all[i].step, 8);
    EXPECT_EQ(all[i].phase, "forward 3/8");
    EXPECT_EQ(all[i].operation, "all_gather");
    EXPECT_EQ(all[i].group, "2 ranks from 4");
    EXPECT_EQ(all[i].number, 17);
    EXPECT_EQ(all[i].bytes, 640);
  }
  EXPECT_EQ(all[1].event + all[2].event + all[3].event, "issuewaitwaited");
}

TEST(FlightRecord, KeepsTheLastOfMany) {
  Pulse pulse;
  for (int i = 0; i < 1000; ++i) {
    pulse.done(i);
    pulse.begin(Phase::kBatch);
  }
  const FlightRecord record = flight_record({&pulse});
  const std::vector<Moment>& all = record.ranks[0].moments;
  ASSERT_EQ(all.size(), FlightRecorder::kMoments);
  EXPECT_EQ(all.front().step, 1000 - static_cast<int64_t>(FlightRecorder::kMoments) + 1);
  EXPECT_EQ(all.back().step, 1000);
}

// Row 192: the launcher reads what a killed rank left.
TEST(FlightRecord, OutlivesTheProcess) {
  Pulses pulses(2);
  const pid_t child = ::fork();
  if (child == 0) {
    pulses.of(1).begin(Phase::kReduce, 1, 4);
    ::_exit(::raise(SIGKILL));
  }
  ::waitpid(child, nullptr, 0);
  const testing::TemporaryFolder folder;
  Fs fs;
  const std::string path = folder / "flight.json";
  write_flight(fs, path, flight_record({&pulses.of(0), &pulses.of(1)}), Log());
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  FlightRecord back;
  read_config(parse_json(text.str(), path), back);
  ASSERT_EQ(back.ranks.size(), 2U);
  EXPECT_EQ(back.ranks[1].rank, 1);
  ASSERT_EQ(back.ranks[1].moments.size(), 1U);
  EXPECT_EQ(back.ranks[1].moments[0].phase, "reduce 2/4");
}

TEST(FlightRecord, AFolderThatIsNotThereIsAWarning) {
  Fs fs;
  EXPECT_NO_THROW(write_flight(fs, "/nowhere/flight.json", {}, Log()));
}

}  // namespace
}  // namespace troupe
