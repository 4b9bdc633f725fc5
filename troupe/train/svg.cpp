#include "troupe/train/svg.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>

namespace troupe::svg {
namespace {

constexpr double kWidth = 460, kHeight = 240, kLeft = 56, kBottom = 30, kTop = 26, kRight = 12;
constexpr size_t kMostPoints = 600, kMostColumns = 120;
constexpr const char* kColours[] = {"#1f6fb2", "#c2452d", "#2d8a4e", "#8a5fb0"};

struct Axis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool logarithmic = false;

  double value(double x) const { return logarithmic ? std::log10(x) : x; }
  bool takes(double x) const { return std::isfinite(x) && (!logarithmic || x > 0); }
  void grow(double x) {
    low = std::min(low, value(x));
    high = std::max(high, value(x));
  }
  double part(double x) const { return high > low ? (value(x) - low) / (high - low) : 0.5; }
  double at(double part) const {
    const double x = low + (high - low) * part;
    return logarithmic ? std::pow(10, x) : x;
  }
};

std::vector<std::pair<double, double>> thinned(const Line& line, const Axis& y) {
  std::vector<std::pair<double, double>> all, out;
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

void text(std::ostream& os, double x, double y, const std::string& s, const char* anchor) {
  os << "<text x=\"" << x << "\" y=\"" << y << "\" text-anchor=\"" << anchor
     << "\" font-size=\"11\">" << s << "</text>";
}

// White over green at 1 to red at 3.
std::string colour(double share) {
  const double up = std::clamp(share, 0.0, 1.0), over = std::clamp((share - 1) / 2, 0.0, 1.0);
  const auto mix = [&](double white, double green, double red) {
    return static_cast<int>(std::lround((white + (green - white) * up) * (1 - over) + red * over));
  };
  char buffer[8];
  std::snprintf(buffer, sizeof(buffer), "#%02x%02x%02x",
                static_cast<unsigned>(mix(255, 92, 190)) & 255u,
                static_cast<unsigned>(mix(255, 176, 40)) & 255u,
                static_cast<unsigned>(mix(255, 110, 30)) & 255u);
  return buffer;
}

}  // namespace

std::string short_label(double value) {
  char buffer[32];
  const double size = std::abs(value);
  if (size >= 1e6)
    std::snprintf(buffer, sizeof(buffer), "%.3gM", value / 1e6);
  else if (size >= 1e4)
    std::snprintf(buffer, sizeof(buffer), "%.3gk", value / 1e3);
  else if (size >= 1e-3 || size == 0)
    std::snprintf(buffer, sizeof(buffer), "%.4g", value);
  else
    std::snprintf(buffer, sizeof(buffer), "%.2g", value);
  return buffer;
}

std::string line_chart(const std::string& title, const std::vector<Line>& lines, bool logarithmic) {
  Axis x, y;
  y.logarithmic = logarithmic;
  std::vector<std::vector<std::pair<double, double>>> points;
  for (const Line& line : lines) {
    for (const auto& [step, value] : points.emplace_back(thinned(line, y))) {
      x.grow(step);
      y.grow(value);
    }
  }
  if (!(x.low <= x.high)) return {};
  std::ostringstream os;
  os << "<svg width=\"" << kWidth << "\" height=\"" << kHeight << "\" role=\"img\">";
  text(os, kLeft, 15, title, "start");
  const double wide = kWidth - kLeft - kRight, high = kHeight - kTop - kBottom;
  for (const double part : {0.0, 0.5, 1.0}) {
    const double height = kTop + high * (1 - part);
    os << "<line x1=\"" << kLeft << "\" x2=\"" << kWidth - kRight << "\" y1=\"" << height
       << "\" y2=\"" << height << "\" stroke=\"#ddd\"/>";
    text(os, kLeft - 4, height + 4, short_label(y.at(part)), "end");
    text(os, kLeft + wide * part, kHeight - 12, short_label(x.at(part)),
         part == 1 ? "end" : "middle");
  }
  for (size_t i = 0; i < points.size(); ++i) {
    const char* const stroke = kColours[i % std::size(kColours)];
    os << "<polyline fill=\"none\" stroke-width=\"1.5\" stroke=\"" << stroke << "\" points=\"";
    for (const auto& [step, value] : points[i]) {
      os << kLeft + wide * x.part(step) << ',' << kTop + high * (1 - y.part(value)) << ' ';
    }
    os << "\"><title>" << lines[i].name << "</title></polyline>";
  }
  os << "</svg>\n";
  return os.str();
}

std::string heat_map(const std::string& title, const std::vector<std::vector<double>>& columns) {
  if (columns.empty()) return {};
  const size_t stride = (columns.size() + kMostColumns - 1) / kMostColumns;
  const size_t rows = columns.back().size(), shown = (columns.size() + stride - 1) / stride;
  const double wide = std::max(3.0, 400 / static_cast<double>(std::max<size_t>(shown, 1)));
  const double high = std::clamp(160 / static_cast<double>(std::max<size_t>(rows, 1)), 2.0, 16.0);
  std::ostringstream os;
  os << "<svg width=\"" << wide * static_cast<double>(shown) + 4 << "\" height=\""
     << high * static_cast<double>(rows) + 24 << "\" role=\"img\">";
  text(os, 0, 14, title, "start");
  for (size_t c = 0; c < shown; ++c) {
    // The last column is always the newest.
    const std::vector<double>& column = columns[std::min(columns.size() - 1, (c + 1) * stride - 1)];
    for (size_t r = 0; r < column.size(); ++r) {
      os << "<rect x=\"" << wide * static_cast<double>(c) << "\" y=\""
         << 20 + high * static_cast<double>(r) << "\" width=\"" << wide << "\" height=\"" << high
         << "\" fill=\"" << colour(column[r]) << "\"/>";
    }
  }
  os << "</svg>\n";
  return os.str();
}

std::string timeline(const std::string& title, const std::vector<BarRow>& rows) {
  constexpr double kWide = 900, kNames = 110, kRow = 22, kHead = 24;
  double last = 0;
  for (const BarRow& row : rows) {
    for (const Bar& bar : row.bars) last = std::max(last, bar.end);
  }
  if (!(last > 0)) return {};
  const auto at = [&](double seconds) { return kNames + (kWide - kNames) * seconds / last; };
  const double foot = kHead + kRow * static_cast<double>(rows.size());
  std::ostringstream os;
  os << "<svg width=\"" << kWide + 30 << "\" height=\"" << foot + 20 << "\" role=\"img\">";
  text(os, 0, 15, title, "start");
  for (size_t r = 0; r < rows.size(); ++r) {
    const double top = kHead + kRow * static_cast<double>(r);
    text(os, kNames - 6, top + 15, rows[r].name, "end");
    for (const Bar& bar : rows[r].bars) {
      os << "<rect x=\"" << at(bar.begin) << "\" y=\"" << top + 2 << "\" width=\""
         << std::max(at(bar.end) - at(bar.begin), 0.3) << "\" height=\"" << kRow - 4 << "\" fill=\""
         << kColours[r % std::size(kColours)] << "\" stroke=\"#fff\" stroke-width=\"0.2\"><title>"
         << bar.name << "</title></rect>";
    }
  }
  for (const double part : {0.0, 0.5, 1.0}) {
    text(os, at(part * last), foot + 14, short_label(part * last) + " s", "middle");
  }
  os << "</svg>\n";
  return os.str();
}

}  // namespace troupe::svg
