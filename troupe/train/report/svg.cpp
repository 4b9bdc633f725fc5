#include "troupe/train/report/svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <span>

namespace troupe::svg {
namespace {

constexpr double kWidth = 460, kHeight = 250, kLeft = 70, kBottom = 44, kTop = 8, kRight = 16;
constexpr double kWide = kWidth - kLeft - kRight, kHigh = kHeight - kTop - kBottom;
constexpr size_t kMostPoints = 600, kMostColumns = 120, kFewPoints = 40;
constexpr int kReadings = 100;  // places along the axis at which values can be read
constexpr std::string_view kColors[] = {"#1f6fb2", "#c2452d", "#2d8a4e", "#8a5fb0",
                                        "#b8860b", "#17889a", "#c0478f", "#555555"};
// The same curves on a dark page.
constexpr std::string_view kDarkColors[] = {"#6cb2f0", "#f0836b", "#6cc98b", "#c09ae6",
                                            "#e0b84a", "#5cc8d8", "#ee86c2", "#b0b0b0"};
static_assert(std::size(kColors) == std::size(kDarkColors));
constexpr int kHeats = 31;  // colors of a heat map, for shares from 0 to 3
using Points = std::vector<std::pair<double, double>>;

std::string_view color_of(size_t i) {
  return kColors[i % std::size(kColors)];
}
// The class that style() gives the curve's color: "s3" that of a stroke, "f3" of what is filled.
std::string class_of(const Chart& chart, size_t i, std::string_view kind) {
  const int of = chart.lines[i].color;
  const size_t color = (of < 0 ? i : static_cast<size_t>(of)) % std::size(kColors);
  return std::string(kind) + std::to_string(color);
}
std::string_view dashes_of(const Line& line) {
  constexpr std::string_view kDashes[] = {"none", "6 3", "2 3", "9 3 2 3", "12 4"};
  return kDashes[static_cast<size_t>(line.dashes) % std::size(kDashes)];
}

// 3e-04 as 3e-4: beside an axis each character counts.
std::string without_zero(std::string number) {
  const size_t at = number.find("e-0");
  return at == std::string::npos ? number : number.erase(at + 2, 1);
}

std::string printed(const char* format, double value) {
  char buffer[48];
  std::snprintf(buffer, sizeof(buffer), format, value);
  return without_zero(buffer);
}

struct Axis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool logarithmic = false;

  double value(double x) const { return logarithmic ? std::log10(x) : x; }
  bool takes(double x) const { return std::isfinite(x) && (!logarithmic || x > 0); }
  void grow(double x) {
    low = std::min(low, value(x));
    high = std::max(high, value(x));
  }
  // Leaves a margin above and below the curve, and draws a flat one in the middle.
  void widen() {
    const double flat = logarithmic ? 0.2 : std::max(std::abs(low) * 0.1, 1e-12);
    const double by = high > low ? (high - low) * 0.05 : flat;
    const bool at_zero = !logarithmic && low >= 0 && low - by < 0;
    low = at_zero ? 0 : low - by;
    high += by;
  }
  double part(double x) const { return high > low ? (value(x) - low) / (high - low) : 0.5; }
};

Points thinned(const Line& line, const Axis& y) {
  Points all, out;
  for (const auto& [step, value] : line.values) {
    if (y.takes(value)) all.emplace_back(static_cast<double>(step), value);
  }
  const size_t each = (all.size() + kMostPoints - 1) / kMostPoints;
  if (each <= 1) return all;
  for (size_t i = 0; i < all.size(); i += each) {
    const size_t end = std::min(all.size(), i + each);
    double sum = 0;
    for (size_t j = i; j < end; ++j) sum += all[j].second;
    out.emplace_back(all[end - 1].first, sum / static_cast<double>(end - i));
  }
  return out;
}

// Powers of ten, with 2 and 5 times of them where they are few; none where the range is too small
// for two of them.
std::vector<double> log_ticks(double low, double high, int most) {
  for (const bool between : {true, false}) {
    std::vector<double> out;
    for (double e = std::floor(low); e <= high; ++e) {
      for (const double m : {1.0, 2.0, 5.0}) {
        const double v = e + std::log10(m);
        if ((m == 1 || between) && v >= low && v <= high) out.push_back(m * std::pow(10, e));
      }
    }
    if (out.size() >= 2 && out.size() <= static_cast<size_t>(most)) return out;
  }
  return {};
}

std::vector<double> ticks_of(const Axis& axis, int most) {
  if (!axis.logarithmic) return ticks(axis.low, axis.high, most);
  const std::vector<double> out = log_ticks(axis.low, axis.high, most);
  return out.empty() ? ticks(std::pow(10, axis.low), std::pow(10, axis.high), most) : out;
}

struct Plane {
  Axis x, y;
  double left(double step) const { return kLeft + kWide * x.part(step); }
  double top(double value) const { return kTop + kHigh * (1 - y.part(value)); }
};

void text(Markup& out, double x, double y, const std::string& s, std::string_view anchor) {
  out << "<text x=\"" << x << "\" y=\"" << y << "\" text-anchor=\"" << anchor << "\">" << s
      << "</text>";
}

void draw_axes(Markup& out, const Plane& plane, const Chart& chart) {
  const std::vector<double> ys = ticks_of(plane.y, 6);
  std::vector<double> xs = ticks_of(plane.x, 6);
  std::erase_if(xs, [](double step) { return step != std::round(step); });
  const std::vector<std::string> y_labels = tick_labels(ys), x_labels = tick_labels(xs);
  for (size_t i = 0; i < ys.size(); ++i) {
    const double y = plane.top(ys[i]);
    out << "<line class=\"grid\" x1=\"" << kLeft << "\" x2=\"" << kLeft + kWide << "\" y1=\"" << y
        << "\" y2=\"" << y << "\"/>";
    text(out, kLeft - 5, y + 4, y_labels[i], "end");
  }
  for (size_t i = 0; i < xs.size(); ++i) {
    const double x = plane.left(xs[i]);
    out << "<line class=\"grid\" x1=\"" << x << "\" x2=\"" << x << "\" y1=\"" << kTop << "\" y2=\""
        << kTop + kHigh << "\"/>";
    text(out, x, kTop + kHigh + 16, x_labels[i], "middle");
  }
  text(out, kLeft + kWide / 2, kHeight - 5, chart.x, "middle");
  out << "<text class=\"name\" transform=\"translate(14 " << kTop + kHigh / 2
      << ") rotate(-90)\" text-anchor=\"middle\">" << chart.y << "</text>";
}

void draw_curve(Markup& out, const Plane& plane, const Points& points, const Chart& chart,
                size_t i) {
  out << "<polyline fill=\"none\" stroke-width=\"1.5\" class=\"" << class_of(chart, i, "s")
      << "\" stroke-dasharray=\"" << dashes_of(chart.lines[i]) << "\" points=\"";
  for (const auto& [step, value] : points) {
    out << plane.left(step) << "," << plane.top(value) << " ";
  }
  out << "\"/>";
  if (points.size() > kFewPoints) return;
  for (const auto& [step, value] : points) {
    out << "<circle r=\"2.5\" cx=\"" << plane.left(step) << "\" cy=\"" << plane.top(value)
        << "\" class=\"" << class_of(chart, i, "f") << "\"/>";
  }
}

// The steps at which values can be read: of those in one place the last.
std::vector<double> readings(const Plane& plane, const std::vector<Points>& curves) {
  std::map<int, double> at;
  for (const Points& points : curves) {
    for (const auto& [step, value] : points) {
      double& last =
          at.try_emplace(static_cast<int>(plane.x.part(step) * kReadings), step).first->second;
      last = std::max(last, step);
    }
  }
  std::vector<double> out;
  for (const auto& [place, step] : at) out.push_back(step);
  return out;
}

// The value of each curve at the step, or its last one before.
std::vector<std::string> reading(const Plane& plane, const Chart& chart,
                                 const std::vector<Points>& curves, double step) {
  const double apart = (plane.x.high - plane.x.low) / kReadings;
  std::vector<std::string> out = {chart.x + " " + printed("%.0f", step)};
  for (size_t i = 0; i < curves.size(); ++i) {
    const auto after = std::upper_bound(curves[i].begin(), curves[i].end(), step,
                                        [](double at, auto& point) { return at < point.first; });
    std::string& line = out.emplace_back();
    if (after == curves[i].begin()) continue;
    const auto& [at, value] = *std::prev(after);
    line = chart.lines[i].name + " " + printed("%.5g", value);
    if (step - at > apart) line += " (at " + printed("%.0f", at) + ")";
  }
  return out;
}

void draw_reading(Markup& out, const Plane& plane, const Chart& chart,
                  const std::vector<Points>& curves, double step) {
  constexpr double kLetter = 6.2, kLine = 15;
  const std::vector<std::string> lines = reading(plane, chart, curves, step);
  size_t longest = 0, count = 0;
  for (const std::string& line : lines) {
    longest = std::max(longest, line.size());
    count += line.empty() ? 0 : 1;
  }
  const double x = plane.left(step), wide = kLetter * static_cast<double>(longest) + 12;
  const double beside = x < kLeft + kWide / 2 ? x + 8 : x - 8 - wide;
  const double left = std::clamp(beside, 0.0, std::max(0.0, kWidth - wide));
  out << "<g class=\"tip\"><line x1=\"" << x << "\" x2=\"" << x << "\" y1=\"" << kTop << "\" y2=\""
      << kTop + kHigh << "\"/><rect x=\"" << left << "\" y=\"" << kTop + 4 << "\" width=\"" << wide
      << "\" height=\"" << kLine * static_cast<double>(count) + 8 << "\" rx=\"3\"/>";
  double y = kTop + 4;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    out << "<text x=\"" << left + 6 << "\" y=\"" << (y += kLine) << "\" class=\""
        << (i == 0 ? "ink" : class_of(chart, i - 1, "f")) << "\">" << lines[i] << "</text>";
  }
  out << "</g>";
}

void draw_readings(Markup& out, const Plane& plane, const Chart& chart,
                   const std::vector<Points>& curves) {
  const std::vector<double> steps = readings(plane, curves);
  double begin = kLeft;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool last = i + 1 == steps.size();
    const double end = last ? kLeft + kWide : (plane.left(steps[i]) + plane.left(steps[i + 1])) / 2;
    out << "<g class=\"at\"><rect x=\"" << begin << "\" y=\"" << kTop << "\" width=\""
        << end - begin << "\" height=\"" << kHigh << "\"/>";
    draw_reading(out, plane, chart, curves, steps[i]);
    out << "</g>";
    begin = end;
  }
}

void add_curves(Markup& out, std::span<const std::string_view> colors) {
  for (size_t i = 0; i < colors.size(); ++i) {
    out << ".s" << i << "{stroke:" << colors[i] << "}.f" << i << "{fill:" << colors[i] << "}";
  }
}

using Color = std::array<double, 3>;  // red, green, blue: 0 to 255

// Black or white, whichever stands out more on the color: by WCAG's contrast of two luminances,
// (L + 0.05) / (l + 0.05), at least 4.58, which is that of the middle, (L + 0.05)^2 = 1.05 * 0.05.
std::string_view text_on(const std::array<unsigned, 3>& color) {
  constexpr std::array<double, 3> kWeights = {0.2126, 0.7152, 0.0722};
  double luminance = 0;
  for (size_t c = 0; c < color.size(); ++c) {
    const double x = color[c] / 255.0;
    luminance += kWeights[c] * (x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4));
  }
  return (luminance + 0.05) * (luminance + 0.05) >= 1.05 * 0.05 ? "#000" : "#fff";
}

// A class for each share: from ends[0] at 0 over ends[1] at 1 to ends[2] at 3.
void add_heats(Markup& out, const std::array<Color, 3>& ends) {
  for (int i = 0; i < kHeats; ++i) {
    const double share = 3.0 * i / (kHeats - 1);
    const double up = std::clamp(share, 0.0, 1.0), over = std::clamp((share - 1) / 2, 0.0, 1.0);
    std::array<unsigned, 3> color{};
    for (size_t c = 0; c < color.size(); ++c) {
      const double low = ends[0][c] + (ends[1][c] - ends[0][c]) * up;
      color[c] = static_cast<unsigned>(std::lround(low + (ends[2][c] - low) * over)) & 255u;
    }
    char text[32];
    std::snprintf(text, sizeof(text), "#%02x%02x%02x", color[0], color[1], color[2]);
    const std::string_view shown = text;
    out << ".h" << i << "{fill:" << shown << ";background:" << shown << ";color:" << text_on(color)
        << "}";
  }
}

Markup legend(const Chart& chart, const std::vector<Points>& curves) {
  Markup out;
  if (chart.lines.size() < 2) return out;
  out << "<p class=\"legend\">";
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    if (curves[i].empty()) continue;
    out << "<span><svg viewBox=\"0 0 28 6\"><line x2=\"28\" y1=\"3\" y2=\"3\" stroke-width=\"3\" "
           "class=\""
        << class_of(chart, i, "s") << "\" stroke-dasharray=\"" << dashes_of(chart.lines[i])
        << "\"/></svg>" << chart.lines[i].name << "</span> ";
  }
  out << "</p>";
  return out;
}

}  // namespace

std::string heat_class(double share) {
  const double most = kHeats - 1;  // at a share of 3
  const double part = std::isnan(share) ? 0 : std::clamp(share / 3, 0.0, 1.0);
  return "h" + std::to_string(std::lround(part * most));
}

std::string short_label(double value) {
  const double size = std::abs(value);
  if (size >= 1e6) return printed("%.3gM", value / 1e6);
  if (size >= 1e4) return printed("%.3gk", value / 1e3);
  return printed(size >= 1e-3 || size == 0 ? "%.4g" : "%.2g", value);
}

std::vector<double> ticks(double low, double high, int most) {
  if (!(low < high) || !std::isfinite(high - low)) return {low};
  const double base = std::pow(10, std::floor(std::log10((high - low) / most)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0, 20.0}) {
    const double each = base * factor;
    const double first = std::ceil(low / each - 1e-9), last = std::floor(high / each + 1e-9);
    if (last - first + 1 > most) continue;
    std::vector<double> out;
    for (double i = first; i <= last; ++i) out.push_back(i == 0 ? 0 : i * each);
    return out;
  }
  return {low};
}

std::vector<std::string> tick_labels(const std::vector<double>& at) {
  double size = 0, apart = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < at.size(); ++i) {
    size = std::max(size, std::abs(at[i]));
    if (i > 0) apart = std::min(apart, at[i] - at[i - 1]);
  }
  std::vector<std::string> out;
  const double unit = size >= 1e9 ? 1e9 : size >= 1e6 ? 1e6 : size >= 1e4 ? 1e3 : 1;
  const std::string suffix = unit == 1e9 ? "G" : unit == 1e6 ? "M" : unit == 1e3 ? "k" : "";
  const bool tiny = size < 1e-3;
  for (const double tick : at) {
    if (tick == 0 || !std::isfinite(apart)) {
      out.push_back(short_label(tick));
      continue;
    }
    const double of = tiny ? std::pow(10, std::floor(std::log10(std::abs(tick)) + 1e-9)) : unit;
    int digits = 0;
    for (double rest = apart / of; digits < 9 && std::abs(rest - std::round(rest)) > 1e-6;
         ++digits) {
      rest *= 10;
    }
    char buffer[48];
    std::snprintf(buffer, sizeof(buffer), tiny ? "%.*e" : "%.*f", digits, tiny ? tick : tick / of);
    out.push_back(without_zero(buffer) + suffix);
  }
  return out;
}

Markup line_chart(const Chart& chart) {
  Plane plane;
  plane.y.logarithmic = chart.logarithmic;
  std::vector<Points> curves;
  for (const Line& line : chart.lines) {
    for (const auto& [step, value] : curves.emplace_back(thinned(line, plane.y))) {
      plane.x.grow(step);
      plane.y.grow(value);
    }
  }
  Markup out;
  if (!(plane.x.low <= plane.x.high)) return out;
  plane.y.widen();
  out << "<figure><figcaption>" << chart.title << "</figcaption>\n<svg viewBox=\"0 0 " << kWidth
      << " " << kHeight << "\" role=\"img\" aria-label=\"" << chart.title << "\">";
  draw_axes(out, plane, chart);
  for (size_t i = 0; i < curves.size(); ++i) draw_curve(out, plane, curves[i], chart, i);
  draw_readings(out, plane, chart, curves);
  out << "</svg>\n" << legend(chart, curves) << "</figure>\n";
  return out;
}

Markup heat_map(const std::string& title, const std::vector<HeatColumn>& columns) {
  Markup out;
  if (columns.empty()) return out;
  const size_t stride = (columns.size() + kMostColumns - 1) / kMostColumns;
  const size_t rows = columns.back().shares.size(), shown = (columns.size() + stride - 1) / stride;
  const double wide = std::max(3.0, 400 / static_cast<double>(std::max<size_t>(shown, 1)));
  const double high = std::clamp(160 / static_cast<double>(std::max<size_t>(rows, 1)), 2.0, 16.0);
  out << "<figure><figcaption>" << title << "</figcaption>\n<svg viewBox=\"0 0 "
      << wide * static_cast<double>(shown) << " " << high * static_cast<double>(rows)
      << "\" role=\"img\" aria-label=\"" << title << "\">";
  for (size_t c = 0; c < shown; ++c) {
    // The last column is always the newest.
    const HeatColumn& column = columns[std::min(columns.size() - 1, (c + 1) * stride - 1)];
    for (size_t r = 0; r < column.shares.size(); ++r) {
      out << "<rect x=\"" << wide * static_cast<double>(c) << "\" y=\""
          << high * static_cast<double>(r) << "\" width=\"" << wide << "\" height=\"" << high
          << "\" class=\"" << heat_class(column.shares[r]) << "\"><title>step " << column.step
          << ", expert " << r << ": " << column.shares[r] << " of the mean</title></rect>";
    }
  }
  out << "</svg></figure>\n";
  return out;
}

Markup timeline(const std::string& title, const std::vector<BarRow>& rows) {
  constexpr double kPage = 900, kNames = 110, kRow = 22, kHead = 24;
  Markup out;
  double last = 0;
  for (const BarRow& row : rows) {
    for (const Bar& bar : row.bars) last = std::max(last, bar.end);
  }
  if (!(last > 0)) return out;
  const auto at = [&](double seconds) { return kNames + (kPage - kNames) * seconds / last; };
  const double foot = kHead + kRow * static_cast<double>(rows.size());
  out << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << kPage + 30 << " "
      << foot + 20 << "\" width=\"" << kPage + 30 << "\" font-family=\"sans-serif\""
      << " font-size=\"11\" role=\"img\">";
  text(out, 0, 15, title, "start");
  for (size_t r = 0; r < rows.size(); ++r) {
    const double top = kHead + kRow * static_cast<double>(r);
    text(out, kNames - 6, top + 15, rows[r].name, "end");
    for (const Bar& bar : rows[r].bars) {
      out << "<rect x=\"" << at(bar.begin) << "\" y=\"" << top + 2 << "\" width=\""
          << std::max(at(bar.end) - at(bar.begin), 0.3) << "\" height=\"" << kRow - 4
          << "\" fill=\"" << color_of(r) << "\" stroke=\"#fff\" stroke-width=\"0.2\"><title>"
          << bar.name << "</title></rect>";
    }
  }
  for (const double seconds : ticks(0, last, 8)) {
    text(out, at(seconds), foot + 14, short_label(seconds) + " s", "middle");
  }
  out << "</svg>\n";
  return out;
}

Markup style() {
  Markup out;
  out << ":root{color-scheme:light dark;--page:#fff;--ink:#222;--soft:#444;--box:#f5f5f5;"
         "--edge:#ddd;--grid:#e4e4e4;--tip:#bbb}@media(prefers-color-scheme:dark){:root{"
         "--page:#16181b;--ink:#e4e4e4;--soft:#b4b8bc;--box:#22262a;--edge:#3a3f44;--grid:#2c3034;"
         "--tip:#5a6066}}";
  add_curves(out, kColors);
  add_heats(out, {{{255, 255, 255}, {92, 176, 110}, {190, 40, 30}}});
  out << "@media(prefers-color-scheme:dark){";
  add_curves(out, kDarkColors);
  add_heats(out, {{{34, 38, 42}, {44, 122, 74}, {196, 60, 44}}});
  out << "}figure{margin:0;min-width:0}figcaption{font-weight:600}"
         "svg{width:100%;height:auto;display:block;fill:var(--soft)}svg text{font:11px sans-serif}"
         ".grid{stroke:var(--grid)}.ink{fill:var(--ink)}.legend{margin:0 0 0 1em;font-size:13px}"
         ".legend span{margin-right:1.2em;display:inline-block}"
         ".legend svg{display:inline-block;width:28px;margin-right:.4em;vertical-align:middle}"
         ".at>rect{fill:transparent}.tip{visibility:hidden;pointer-events:none}"
         ".at:hover>.tip{visibility:visible}.tip line{stroke:var(--tip)}"
         ".tip rect{fill:var(--page);stroke:var(--tip)}svg .tip text{font-size:11px}";
  return out;
}

}  // namespace troupe::svg
