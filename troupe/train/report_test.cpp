#include "troupe/train/report.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "troupe/core/file.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/train/svg.h"

namespace troupe {
namespace {

constexpr std::string_view kLog =
    "{\"event\":\"start\",\"step\":0}\n"
    "{\"step\":1,\"loss\":5.5,\"lr\":0.001,\"tokens_s\":1000}\n"
    "{\"step\":2,\"loss\":5,\"lr\":0.001,\"tokens_s\":1000}\n"
    "{\"step\":3,\"loss\":99,\"lr\":0.001,\"tokens_s\":1000}\n"
    "{\"event\":\"eval\",\"set\":\"a<b\",\"val/loss\":4.5,\"step\":3}\n"
    "{\"event\":\"resume\",\"step\":2}\n"
    "{\"step\":3,\"loss\":4,\"lr\":0.0005,\"tokens_s\":1200,\"moe/load\":1.5}\n"
    "{\"event\":\"sample\",\"prompt\":\"A\",\"text\":\"A & B\",\"step\":3}\n"
    "{\"event\":\"experts\",\"layers\":{\"0\":[0.5,1.5]},\"step\":3}\n"
    "{\"step\":4,\"loss\":1";

TEST(Report, F133_AResumedRunHasOneCurve) {
  const testing::TemporaryFolder folder;
  Fs fs;
  publish_file(fs, folder / "log.jsonl", kLog);
  const RunLog log = read_run_log(folder / "log.jsonl");
  EXPECT_EQ(log.series.at("loss"), (std::map<int64_t, double>{{1, 5.5}, {2, 5}, {3, 4}}));
  EXPECT_TRUE(log.evaluations.empty());  // of the branch that was given up
  ASSERT_EQ(log.experts.size(), 1u);
  EXPECT_EQ(log.experts[0].layers.at(0), (std::vector<double>{0.5, 1.5}));
  ASSERT_EQ(log.samples.size(), 1u);
  EXPECT_EQ(log.events.size(), 2u);
}

TEST(Report, IsOnePageWithoutOutsideReferences) {
  const testing::TemporaryFolder folder;
  Fs fs;
  publish_file(fs, folder / "log.jsonl", kLog);
  publish_file(fs, folder / "recipe.yaml", "model: <script>\n");
  const std::string path = write_report(fs, folder.path());
  const std::string html = read_file(path);
  EXPECT_NE(html.find("loss 5.5 at step 1, 4 now"), std::string::npos);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_NE(html.find("A &amp; B"), std::string::npos);
  for (const char* outside : {"http", "<script", "src=", "href="}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
}

TEST(Report, ExpertsRecordTellsSharesOfTheMean) {
  const Record r = experts_record({{.layer = 2, .counts = {1, 3}}});
  EXPECT_EQ(r.json(), R"({"event":"experts","layers":{"2":[0.5,1.5]}})");
}

TEST(Svg, ChartsAreThinnedAndLeaveOutWhatCannotBeDrawn) {
  svg::Line line{"loss", {}};
  for (int64_t i = 0; i < 10000; ++i) line.values[i] = 1 + 1.0 / static_cast<double>(i + 1);
  const std::string lanes =
      svg::timeline("a step", {{"compute", {{"F0.0", 0, 1}, {"B0.0", 1, 4}}}, {"wait", {}}});
  EXPECT_NE(lanes.find("<title>B0.0</title>"), std::string::npos);
  EXPECT_NE(lanes.find("4 s"), std::string::npos);
  EXPECT_EQ(svg::timeline("none", {{"compute", {}}}), "");
  const std::string chart = svg::line_chart("loss", {line}, false);
  EXPECT_LT(std::count(chart.begin(), chart.end(), ','), 700);
  EXPECT_EQ(svg::line_chart("x", {{"x", {{1, -1.0}}}}, true), "");
  EXPECT_EQ(svg::line_chart("x", {}, false), "");
}

}  // namespace
}  // namespace troupe
