#include "troupe/train/observe/step_line.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>

namespace troupe {
namespace {

LogRecord record() {
  LogRecord r;
  r.add("loss", 3.4121);
  r.add("lr", 2.98e-4);
  r.add("grad_norm", 0.834);
  r.add("tokens_s", 181400.0);
  r.add("step_s", 0.43);
  r.add("batch", int64_t{512});
  return r;
}
constexpr Position kNow{1200, 614400, 629145600}, kRun{20000, 10240000, 10485760000};

TEST(StepLine, IsOneLineInAFixedOrder) {
  LogRecord r = record();
  EXPECT_EQ(step_line(LineFormat::kTroupe, r, kNow, kRun),
            "step 1200/20000  loss 3.412  lr 2.98e-04  gnorm 0.83  tok/s 181.4k  eta 2h14m");
  r.add("mfu", 0.412);
  r.add("moe/load", 1.31);
  r.add("moe/dead", 0.0);
  r.add("moe/dropped", 0.0);
  r.add("data_wait", 0.004);
  EXPECT_EQ(step_line(LineFormat::kTroupe, r, kNow, kRun),
            "step 1200/20000  loss 3.412  lr 2.98e-04  gnorm 0.83  tok/s 181.4k  mfu 41.2%  data "
            "0.4%  load 1.31 dead 0 drop 0.0%  eta 2h14m");
}

TEST(StepLine, MegatronsToolsFindTheirFields) {
  const std::string line = step_line(LineFormat::kMegatron, record(), kNow, kRun);
  const std::regex theirs(
      R"(iteration\s+(\d+)/\s*(\d+) \| consumed samples:\s+(\d+) \| elapsed time per iteration \(ms\): ([\d.]+) \|.* learning rate: ([\d.E+-]+) \| global batch size:\s+(\d+) \| lm loss: ([\d.E+-]+) \| loss scale: ([\d.]+) \| grad norm: ([\d.]+) \| number of skipped iterations:\s+(\d+) \| number of nan iterations:\s+(\d+) \|)");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(line, found, theirs)) << line;
  EXPECT_EQ(found[1], "1200");
  EXPECT_EQ(found[3], "614400");
  EXPECT_EQ(found[4], "430.0");
  EXPECT_EQ(found[7], "3.412100E+00");
}

TEST(StepLine, R3_ForcedRoutingIsInEveryLine) {
  LogRecord r = record();
  for (const LineFormat format : {LineFormat::kTroupe, LineFormat::kMegatron}) {
    EXPECT_EQ(step_line(format, r, kNow, kRun).find("FORCED"), std::string::npos);
  }
  r.add("forced", int64_t{1});
  for (const LineFormat format : {LineFormat::kTroupe, LineFormat::kMegatron}) {
    EXPECT_NE(step_line(format, r, kNow, kRun).find("FORCED"), std::string::npos);
  }
  for (const int columns : {30, 60, 100}) {
    EXPECT_TRUE(live_line(r, kNow, kRun, columns).ends_with("FORCED")) << columns;
  }
}

TEST(StepLine, EightyColumnsHaveTheLoadAndTheDeadExperts) {
  LogRecord r;
  for (const auto& [name, value] :
       {std::pair("loss", 3.1234), std::pair("lr", 3e-4), std::pair("grad_norm", 0.52),
        std::pair("tokens_s", 181200.0), std::pair("mfu", 0.41), std::pair("moe/load", 4.0),
        std::pair("moe/dead", 9.0), std::pair("step_s", 0.35)}) {
    r.add(name, value);
  }
  const std::string line = live_line(r, {.steps = 1234}, {.steps = 50000}, 79);
  EXPECT_EQ(line, "step 1234/50000  loss 3.123  tok/s 181.2k  load 4.00  dead 9  eta 4h44m");
  EXPECT_EQ(live_line(r, {.steps = 1234}, {.steps = 50000}, 50),
            "step 1234/50000  loss 3.123  load 4.00  dead 9");
}

TEST(StepLine, NumbersAndTimesAreShort) {
  EXPECT_EQ(short_number(999), "999");
  EXPECT_EQ(short_number(2084000), "2.08M");
  EXPECT_EQ(short_time(12.4), "12s");
  EXPECT_EQ(short_time(185), "3m05s");
  EXPECT_EQ(short_time(2 * 86400 + 3 * 3600), "2d03h");
}

TEST(LogRecord, IsOneJsonObjectInOrder) {
  LogRecord r;
  r.add("step", int64_t{3});
  r.add("loss", std::nan(""));
  r.add("event", std::string_view("a \"quote\""));
  r.add("load", std::vector<double>{1.5, 2});
  EXPECT_EQ(r.json(), R"({"step":3,"loss":null,"event":"a \"quote\"","load":[1.5,2]})");
  EXPECT_EQ(r.scalars().size(), 2u);
}

}  // namespace
}  // namespace troupe
