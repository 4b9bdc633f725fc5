#include <algorithm>
#include <cmath>
#include <numbers>

#include "troupe/core/text/text.h"
#include "troupe/train/report/report_parts.h"
#include "troupe/train/report/svg.h"

namespace troupe::report {
namespace {

using svg::Chart;
using svg::Line;

// A run's name before a curve's where there are several.
std::string curve_name(const std::vector<ReportRun>& runs, const ReportRun& run,
                       const std::string& what) {
  if (runs.size() == 1) return what;
  return what.empty() ? run.name : run.name + ", " + what;
}

// In a chart of several runs a color is a run.
int color_of(const std::vector<ReportRun>& runs, const ReportRun& run) {
  return runs.size() == 1 ? -1 : static_cast<int>(&run - runs.data());
}

void add_series(Chart& chart, const std::vector<ReportRun>& runs, const std::string& series,
                const std::string& what = "") {
  for (const ReportRun& run : runs) {
    const auto found = run.log.series.find(series);
    if (found == run.log.series.end() || found->second.empty()) continue;
    chart.lines.push_back({curve_name(runs, run, what), found->second, color_of(runs, run)});
  }
}

Markup series_chart(const std::vector<ReportRun>& runs, const std::string& series,
                    const std::string& title, const std::string& unit, bool logarithmic = false) {
  Chart chart{.title = title, .y = unit, .lines = {}, .logarithmic = logarithmic};
  add_series(chart, runs, series, runs.size() == 1 ? unit : "");
  return svg::line_chart(chart);
}

// A curve for each set of each run, of what `value` takes from an evaluation.
void add_validation(Chart& chart, const std::vector<ReportRun>& runs,
                    double (*value)(const RunLog::Evaluation&)) {
  for (const ReportRun& run : runs) {
    int sets = 0;
    for (const RunLog::Evaluation& e : run.log.evaluations) {
      if (!std::isfinite(value(e))) continue;
      const std::string name = curve_name(runs, run, "validation: " + e.set);
      auto line = std::find_if(chart.lines.begin(), chart.lines.end(),
                               [&](const Line& l) { return l.name == name; });
      if (line == chart.lines.end()) {
        line = chart.lines.insert(line, {name, {}, color_of(runs, run), ++sets});
      }
      line->values[e.step] = value(e);
    }
  }
}

Markup loss_chart(const std::vector<ReportRun>& runs) {
  Chart chart{.title = "Loss", .y = "loss (nats a token)", .lines = {}};
  add_series(chart, runs, "loss", "training");
  add_validation(chart, runs, [](const RunLog::Evaluation& e) { return e.loss; });
  return svg::line_chart(chart);
}

// Training has no count of bytes: it takes the validation text's bytes a token.
Markup bits_chart(const std::vector<ReportRun>& runs) {
  Chart chart{.title = "Bits per byte", .y = "bits a byte", .lines = {}};
  for (const ReportRun& run : runs) {
    const double bytes = run.log.bytes_per_token();
    const auto loss = run.log.series.find("loss");
    if (!std::isfinite(bytes) || loss == run.log.series.end()) continue;
    const std::string what = "training, at " + svg::short_label(bytes) + " bytes a token";
    Line& line =
        chart.lines.emplace_back(Line{curve_name(runs, run, what), {}, color_of(runs, run)});
    for (const auto& [step, nats] : loss->second) {
      line.values[step] = nats / std::numbers::ln2 / bytes;
    }
  }
  add_validation(chart, runs, [](const RunLog::Evaluation& e) { return e.bits_per_byte; });
  return svg::line_chart(chart);
}

// What ranks do themselves in a step; the others wait for the slowest.
Markup ranks_chart(const std::vector<ReportRun>& runs) {
  Chart chart{.title = "A rank's own work in a step", .y = "seconds", .lines = {}};
  add_series(chart, runs, "ranks/own_max_s", "the slowest rank");
  add_series(chart, runs, "ranks/own_min_s", "the fastest rank");
  return svg::line_chart(chart);
}

}  // namespace

Markup charts(const std::vector<ReportRun>& runs) {
  Markup out;
  out << loss_chart(runs) << bits_chart(runs)
      << series_chart(runs, "tokens_s", "Speed", "tokens a second")
      << series_chart(runs, "lr", "Learning rate", "learning rate")
      << series_chart(runs, "grad_norm", "Gradient norm", "norm", true)
      << series_chart(runs, "moe/load", "Load of the busiest expert", "tokens over the mean")
      << ranks_chart(runs);
  return out;
}

// One heat map per layer: steps to the right, experts downwards. If there are many layers, only
// those with the worst load balance are drawn.
Markup expert_maps(const RunLog& log) {
  Markup out;
  if (log.experts.empty()) return out;
  constexpr size_t kShown = 8;
  std::vector<std::pair<double, int64_t>> worst;
  for (const auto& [layer, shares] : log.experts.back().layers) {
    if (!shares.empty())
      worst.emplace_back(-*std::max_element(shares.begin(), shares.end()), layer);
  }
  std::sort(worst.begin(), worst.end());
  worst.resize(std::min(worst.size(), kShown));
  std::sort(worst.begin(), worst.end(), [](auto& a, auto& b) { return a.second < b.second; });
  out << "<p>Each square is an expert's tokens over the layer's mean: 0 has no color, 1 is green, "
         "3 "
         "and more red. Steps go to the right, experts down.</p>\n<div class=\"columns\">\n";
  for (const auto& [load, layer] : worst) {
    std::vector<svg::HeatColumn> columns;
    for (const RunLog::Experts& e : log.experts) {
      const auto found = e.layers.find(layer);
      if (found != e.layers.end()) columns.push_back({e.step, found->second});
    }
    out << svg::heat_map("Layer " + std::to_string(layer), columns);
  }
  out << "</div>\n";
  return out;
}

Markup use_tables(const ExpertUse& use) {
  Markup out;
  out << "<p>How often the tokens of a source choose an expert, over an even share: 0 has no "
         "color, 1 "
         "is green, 3 and more red. Behind it tokens of which the largest part goes to the expert. "
         "From step "
      << use.step << ", by <code>troupe inspect experts</code>.</p>\n";
  for (const ExpertUse::Layer& layer : use.layers) {
    out << "<h3>Layer " << layer.layer << "</h3>\n<p>An expert's number tells "
        << svg::short_label(layer.bits) << " bits of a token's source.</p>\n"
        << "<div class=\"wide\"><table><tr><th>expert</th>";
    for (const ExpertUse::Source& source : use.sources) out << "<th>" << source.name << "</th>";
    out << "<th>tokens</th></tr>\n";
    for (size_t e = 0; e < layer.experts.size(); ++e) {
      const ExpertUse::Expert& expert = layer.experts[e];
      out << "<tr><td>" << e << "</td>";
      for (const double share : expert.shares) {
        out << "<td class=\"" << svg::heat_class(share) << "\">" << svg::short_label(share)
            << "</td>";
      }
      out << "<td>";
      for (const ExpertUse::Token& token : expert.tokens) {
        out << spelled(token) << " " << svg::short_label(100 * token.part) << "%  ";
      }
      out << "</td></tr>\n";
    }
    out << "</table></div>\n";
  }
  return out;
}

}  // namespace troupe::report
