#include "troupe/train/report/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "troupe/core/file/file.h"
#include "troupe/core/text/text.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/train/report/svg.h"

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
  EXPECT_EQ(log.events.size(), 3u);  // start, no word of its end, resume
}

TEST(Report, TheUsualRateIsTheMedianOfTheSecondHalf) {
  RunLog log;
  log.series["tokens_s"] = {{1, 10}, {2, 900}, {3, 1000}, {4, 2000}, {5, 1500}};
  EXPECT_EQ(log.usual("tokens_s"), 1500);  // of 1000, 2000 and 1500
  EXPECT_TRUE(std::isnan(log.usual("step_s")));
}

TEST(Report, IsOnePageWithoutOutsideReferences) {
  const testing::TemporaryFolder folder;
  Fs fs;
  publish_file(fs, folder / "log.jsonl", kLog);
  publish_file(fs, folder / "recipe.yaml", "model: <script>\n");
  const std::string path = write_report(fs, folder.path());
  const std::string html = read_file(path);
  EXPECT_NE(html.find("5.5 at first, 4 now"), std::string::npos);
  EXPECT_NE(html.find("<svg"), std::string::npos);
  EXPECT_NE(html.find("A &amp; B"), std::string::npos);
  for (const char* outside : {"http:", "https:", "<script", "src=", "href="}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
}

// Names of sets, of runs, and texts of files are data; a quote ends no attribute.
TEST(Report, F160_NoNameBecomesMarkup) {
  const std::string bad = "a\"'><script>alert(1)</script><img onerror=x>&\x1b[31m";
  RunLog log;
  log.series["loss"] = {{1, 3}, {2, 2}};
  log.evaluations = {{1, bad, 3, 1.5}, {2, bad, 2, 1}};
  log.samples = {{1, bad, bad}};
  log.events = {{1, bad}};
  log.experts = {{1, {{0, {0.5, 1.5}}}}};
  const ReportRun run{.name = bad, .log = log, .recipe = "a: " + to_text(bad), .environment = bad};
  ReportRun other = run;
  other.recipe = "b: " + to_text(bad);
  for (const std::string& html : {report_html({run}), report_html({run, other})}) {
    for (const char* markup : {"<script", "<img", "\"'>", "\x1b", "a\"'"}) {
      EXPECT_EQ(html.find(markup), std::string::npos) << markup;
    }
    EXPECT_NE(html.find("validation: a&quot;&#39;&gt;&lt;script&gt;"), std::string::npos);
  }
  const std::string lanes = svg::timeline(bad, {{bad, {{bad, 0, 1}}}}).str();
  EXPECT_EQ(lanes.find("<script"), std::string::npos);
}

// The classes that `text` gives colors, of curves, of a heat map and of the ink.
std::set<std::string> color_classes(const std::string& text, const std::regex& pattern) {
  std::set<std::string> out;
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) {
    out.insert((*at)[1]);
  }
  return out;
}

TEST(Report, IsDarkWhereTheReaderPrefersIt) {
  RunLog log;
  log.series["loss"] = {{1, 3}, {2, 2}};
  log.evaluations = {{1, "web", 3, 1.5}, {2, "web", 2, 1}};
  log.experts = {{25, {{0, {0, 0.4, 1, 9}}}}};
  const ReportRun run{.name = "run", .log = log};
  const std::string html = report_html({run});
  const size_t dark = html.find("@media(prefers-color-scheme:dark)"), body = html.find("<body>");
  ASSERT_LT(dark, body);
  const std::string style = html.substr(0, body), shown = html.substr(body);
  // Colors are the style sheet's alone, and each that is used has one for light and one for dark.
  EXPECT_FALSE(std::regex_search(shown, std::regex("(fill|stroke|background)[=:]\"?#")));
  const std::set<std::string> used = color_classes(shown, std::regex("class=\"([sfh]\\d+)\""));
  EXPECT_EQ(used, (std::set<std::string>{"s0", "s1", "f0", "f1", "h0", "h4", "h10", "h30"}));
  for (const std::string& name : used) {
    const std::set<std::string> colors =
        color_classes(style, std::regex("\\." + name + "\\{\\w+:(#\\w{6})"));
    EXPECT_EQ(colors.size(), 2u) << name;
  }
  for (const char* part : {"color:var(--ink);background:var(--page)", "color-scheme:light dark"}) {
    EXPECT_NE(style.find(part), std::string::npos) << part;
  }
  EXPECT_NE(shown.find("<title>step 25, expert 3: 9 of the mean</title>"), std::string::npos);
}

constexpr std::string_view kKilled =
    "{\"event\":\"start\",\"samples\":0,\"params\":2000000,\"active_params\":1000000,"
    "\"step\":0,\"time\":1000}\n"
    "{\"step\":1,\"loss\":5,\"tokens_s\":1000,\"time\":1010}\n"
    "{\"step\":2,\"loss\":4,\"tokens_s\":1000,\"time\":1020}\n"
    "{\"step\":3,\"lo"
    "{\"event\":\"resume\",\"step\":1,\"time\":5000}\n"
    "{\"event\":\"resume\",\"step\":1,\"time\":5000}\n"
    "{\"step\":2,\"loss\":4,\"tokens_s\":1000,\"tokens\":64,\"time\":5010}\n"
    "{\"event\":\"eval\",\"set\":\"web\",\"val/loss\":2.7725887222397811,"
    "\"val/bits_per_byte\":2,\"step\":2,\"time\":5020}\n"
    "{\"event\":\"end\",\"step\":2,\"time\":5030}\n";

TEST(Report, TellsSizesTimesKillsAndRestarts) {
  const testing::TemporaryFolder folder;
  Fs fs;
  publish_file(fs, folder / "log.jsonl", kKilled);
  const RunLog log = read_run_log(folder / "log.jsonl");
  EXPECT_EQ(log.torn, 1);  // a write that a full disk cut in the middle of the log
  EXPECT_EQ(log.kills(), 1);
  EXPECT_EQ(log.seconds(), 20 + 30);            // not the time between
  EXPECT_NEAR(log.bytes_per_token(), 2, 1e-9);  // 4 bits a token, 2 a byte
  const std::string html = read_file(write_report(fs, folder.path()));
  for (const char* text :
       {"2.00M, 1.00M active", "50s", "2; 1 after a kill",
        "ended without a word: killed, or an error; 1 logged steps were done again",
        "training, at 2 bytes a token", "validation: web", "1970-01-01 00:17:00",
        "loss (nats a token)", ">step<", "@media(max-width"}) {
    EXPECT_NE(html.find(text), std::string::npos) << text;
  }
}

TEST(Report, SeveralRunsShareChartsWithALegend) {
  const testing::TemporaryFolder folder;
  Fs fs;
  for (const std::string run : {"a", "b"}) {
    fs.mkdir(folder / run);
    publish_file(fs, folder / run + "/log.jsonl", kKilled);
    publish_file(fs, folder / run + "/recipe.yaml",
                 "train:\n  seed: 1\n  batch: " + std::string(run == "a" ? "8" : "16") + "\n");
  }
  write_comparison(fs, {folder / "a", folder / "b"}, folder / "both.html");
  const std::string html = read_file(folder / "both.html");
  EXPECT_NE(html.find("class=\"legend\""), std::string::npos);
  EXPECT_NE(html.find(folder / "b" + ", validation: web"), std::string::npos);
  EXPECT_NE(html.find("<tr><th>train.batch</th><td>8</td><td>16</td></tr>"), std::string::npos);
  EXPECT_EQ(html.find("train.seed"), std::string::npos);
}

TEST(Report, ExpertsRecordTellsSharesOfTheMean) {
  const LogRecord r = experts_record({{.layer = 2, .counts = {1, 3}}});
  EXPECT_EQ(r.json(), R"({"event":"experts","layers":{"2":[0.5,1.5]}})");
}

TEST(Svg, ChartsAreThinnedAndLeaveOutWhatCannotBeDrawn) {
  svg::Line line{"loss", {}};
  for (int64_t i = 0; i < 10000; ++i) line.values[i] = 1 + 1.0 / static_cast<double>(i + 1);
  const std::string lanes =
      svg::timeline("a step", {{"compute", {{"F0.0", 0, 1}, {"B0.0", 1, 4}}}, {"wait", {}}}).str();
  EXPECT_NE(lanes.find("<title>B0.0</title>"), std::string::npos);
  EXPECT_NE(lanes.find("4 s"), std::string::npos);
  EXPECT_TRUE(svg::timeline("none", {{"compute", {}}}).empty());
  const std::string chart = svg::line_chart({.title = "loss", .y = "loss", .lines = {line}}).str();
  EXPECT_LT(std::count(chart.begin(), chart.end(), ','), 700);
  EXPECT_NE(chart.find(">step 101<"), std::string::npos);  // what is under the pointer
  EXPECT_TRUE(
      svg::line_chart({.title = "x", .y = "", .lines = {{"x", {{1, -1.0}}}}, .logarithmic = true})
          .empty());
  EXPECT_TRUE(svg::line_chart({.title = "x", .y = "", .lines = {}}).empty());
}

TEST(Svg, TicksAreRoundAndTheirLabelsDiffer) {
  using Labels = std::vector<std::string>;
  const auto labels = [](double low, double high) {
    return svg::tick_labels(svg::ticks(low, high, 6));
  };
  EXPECT_EQ(labels(1, 5.53), (Labels{"1", "2", "3", "4", "5"}));
  EXPECT_EQ(labels(0, 2000), (Labels{"0", "500", "1000", "1500", "2000"}));
  EXPECT_EQ(labels(3.371, 3.412), (Labels{"3.38", "3.39", "3.40", "3.41"}));
  EXPECT_EQ(labels(0, 6.1e-4), (Labels{"0", "2e-4", "4e-4", "6e-4"}));
  EXPECT_EQ(labels(100'000, 101'000),
            (Labels{"100.0k", "100.2k", "100.4k", "100.6k", "100.8k", "101.0k"}));
  EXPECT_EQ(labels(-1, 1), (Labels{"-1.0", "-0.5", "0", "0.5", "1.0"}));
  EXPECT_EQ(svg::ticks(7, 7, 6), (std::vector<double>{7}));
}

}  // namespace
}  // namespace troupe
