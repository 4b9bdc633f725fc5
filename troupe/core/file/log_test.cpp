#include "troupe/core/file/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iomanip>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "troupe/core/file/file.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

using testing::TemporaryFolder;

class Memory : public LogSink {
 public:
  void write(Level level, std::string_view line) override {
    const std::lock_guard lock(mutex_);
    lines.push_back(to_text(level) + ": " + std::string(line));
  }
  std::vector<std::string> lines;

 private:
  std::mutex mutex_;
};

int count_lines(const std::string& text) {
  return static_cast<int>(std::ranges::count(text, '\n'));
}

TEST(Log, WritesToEverySinkFromTheLevelAsked) {
  const auto a = std::make_shared<Memory>(), b = std::make_shared<Memory>();
  const Log log({a, b}, Level::kInfo, rank_prefix(3, 8));
  log.debug("no");
  log.info("yes");
  log.error("oh");
  EXPECT_EQ(a->lines, (std::vector<std::string>{"info: [3/8] yes", "error: [3/8] oh"}));
  EXPECT_EQ(b->lines, a->lines);
  EXPECT_FALSE(log.says(Level::kDebug));
}

TEST(Log, SaysNothingByDefaultAndNoRankInAWorldOfOne) {
  const Log log;
  log.error("into the void");
  EXPECT_FALSE(log.says(Level::kError));
  EXPECT_EQ(rank_prefix(0, 1), "");
}

TEST(Log, WritesPercentAndBracesAsTheyAre) {
  const TemporaryFolder folder;
  const auto sink = file_sink(folder / "log.txt");
  Log({sink}).info("100% {} %v \xc3\xa9");
  const std::string text = read_file(folder / "log.txt"), tail = " info 100% {} %v \xc3\xa9\n";
  ASSERT_GT(text.size(), tail.size());
  EXPECT_EQ(text.substr(text.size() - tail.size()), tail);
}

// "2026-11-21 12:30:01.250+05:30 info text": the local time, and how far it is ahead of UTC.
TEST(Log, ALineOfAFileCarriesItsZone) {
  const char* set = std::getenv("TZ");
  const std::optional<std::string> before =
      set == nullptr ? std::nullopt : std::optional(std::string(set));
  for (const auto& [zone, offset] : {std::pair("AAA-5:30", "+05:30"),
                                     std::pair("BBB3:30", "-03:30"), std::pair("UTC0", "+00:00")}) {
    const TemporaryFolder folder;
    ::setenv("TZ", zone, 1);
    ::tzset();
    Log({file_sink(folder / "log.txt")}).info("said");
    const std::string text = read_file(folder / "log.txt");
    EXPECT_EQ(text.substr(std::min<size_t>(text.size(), 23)), std::string(offset) + " info said\n");
    std::tm local{};
    std::istringstream(text) >> std::get_time(&local, "%Y-%m-%d %H:%M:%S");
    EXPECT_NEAR(static_cast<double>(std::mktime(&local)), static_cast<double>(std::time(nullptr)),
                60);
  }
  if (!before) {
    ::unsetenv("TZ");
  } else {
    ::setenv("TZ", before->c_str(), 1);
  }
  ::tzset();
}

TEST(Log, LinesOfSeveralThreadsStayWhole) {
  const TemporaryFolder folder;
  const Log log({file_sink(folder / "log.txt")});
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&log, t] {
        for (int i = 0; i < 500; ++i) log.info(std::string(50, static_cast<char>('a' + t)));
      });
    }
  }
  std::istringstream in(read_file(folder / "log.txt"));
  int lines = 0;
  for (std::string line; std::getline(in, line); ++lines) {
    EXPECT_EQ(line.substr(line.size() - 50), std::string(50, line.back()));
  }
  EXPECT_EQ(lines, 2000);
}

TEST(Log, F134_StaysBelowItsBound) {
  const TemporaryFolder folder;
  const Log log({file_sink(folder / "log.txt", 1000, 2)});
  for (int i = 0; i < 1000; ++i) log.info("a line of some length");
  uintmax_t total = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    total += entry.file_size();
  }
  EXPECT_LE(total, 3000u);
  EXPECT_GT(count_lines(read_file(folder / "log.txt")), 0);
}

// log.keep: so many older files, the newest of them log.1.txt; with 0 the file alone.
TEST(Log, F134_KeepsAsManyOlderFilesAsAsked) {
  for (const int kept : {0, 1, 4}) {
    const TemporaryFolder folder;
    const Log log({file_sink(folder / "log.txt", 1000, kept)});
    for (int i = 0; i < 1000; ++i) log.info("line " + std::to_string(i));
    std::set<std::string> names = {"log.txt"}, found;
    for (int i = 1; i <= kept; ++i) names.insert("log." + std::to_string(i) + ".txt");
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
      found.insert(entry.path().filename());
    }
    EXPECT_EQ(found, names);
    EXPECT_TRUE(read_file(folder / "log.txt").ends_with(" info line 999\n"));
  }
}

TEST(Log, F132_ADeletedFolderComesBack) {
  const TemporaryFolder folder;
  const Log log({file_sink(folder / "sub/log.txt")});
  log.info("first");
  std::filesystem::remove_all(folder / "sub");
  log.info("second");
  const std::string text = read_file(folder / "sub/log.txt");
  EXPECT_NE(text.find("second"), std::string::npos);
  EXPECT_EQ(count_lines(text), 1);
}

TEST(Log, F132_AFullDiskCostsOneWarningAndNothingElse) {
  const Log log({file_sink("/dev/full")});
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) log.info("lost");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_lines(said), 1) << said;
  EXPECT_NE(said.find("/dev/full: log lines are lost: "), std::string::npos) << said;
}

TEST(Log, StderrHasNoColorsWhereNobodyLooks) {
  ::testing::internal::CaptureStderr();
  Log({stderr_sink()}).warning("careful");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find(" warning careful\n"), std::string::npos) << said;
  EXPECT_EQ(said.find('\x1b'), std::string::npos);
}

// 100 MB of lines into a pipe whose reader has stopped: lost and counted, and nobody waits for it.
// Each line asks the kernel once whether the reader is back, which takes a slow machine 100 us; a
// wait for the reader at each would take hours.
TEST(Log, F97_APipeThatNobodyReadsHoldsNobody) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(ends[1], STDERR_FILENO);
  const Log log({stderr_sink()});
  const std::string line(1000, 'x');
  constexpr int64_t kLines = 100'000;
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < kLines; ++i) log.info(line);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const auto read_all = [&] {  // without waiting for more
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    std::string out, part(1 << 16, '\0');
    for (ssize_t n = 0; (n = ::read(ends[0], part.data(), part.size())) > 0;) {
      out.append(part, 0, static_cast<size_t>(n));
    }
    return out;
  };
  const std::string first = read_all();
  log.info("again");
  const std::string second = read_all();
  ::dup2(before, STDERR_FILENO);
  for (const int fd : {before, ends[0], ends[1]}) ::close(fd);
  EXPECT_LT(took.count(), 120);
  const int64_t read = count_lines(first);
  EXPECT_GT(read, 10);
  EXPECT_EQ(first.back(), '\n');  // whole lines
  const std::string lost = " warning " + std::to_string(kLines - read) + " lines were not read";
  EXPECT_NE(second.find(lost), std::string::npos) << second << read;
  EXPECT_NE(second.find(" info again\n"), std::string::npos) << second;
}

}  // namespace
}  // namespace troupe
