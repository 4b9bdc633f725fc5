#include "bench/control_plane/row.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "troupe/core/check.h"
#include "troupe/core/text/readable.h"

namespace troupe::control_plane {
namespace {

constexpr double kOfOneRow = 2;

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", seconds);
  return text;
}

std::vector<std::string> cells_of(const Row& row) {
  const double of_rank = static_cast<double>(row.all.requests) / static_cast<double>(row.ranks);
  const int64_t descriptors = row.descriptors / std::max<int64_t>(row.ranks, 1);
  return {grouped(row.ranks),
          row.phase,
          grouped(std::llround(of_rank)),
          grouped(row.most_found),
          grouped(row.all.requests),
          readable_bytes(row.all.bytes),
          grouped(row.keys),
          readable_bytes(row.all.largest_value),
          std::to_string(row.all.longest_key),
          std::to_string(descriptors),
          grouped(row.messages),
          readable_bytes(row.files_read),
          seconds_text(row.seconds),
          readable_bytes(row.memory),
          readable_bytes(row.of_server),
          row.computed.empty() ? "measured" : "computed"};
}

}  // namespace

std::string grouped(int64_t number) {
  std::string out = std::to_string(number);
  for (auto at = std::ssize(out) - 3; at > 0; at -= 3) out.insert(static_cast<size_t>(at), 1, ',');
  return out;
}

Row computed_row(const std::vector<Row>& before, int64_t ranks) {
  TROUPE_CHECK(!before.empty() && before.back().ranks < ranks, "rows of fewer ranks than", ranks);
  const Row& last = before.back();
  const Row* const other = before.size() > 1 ? &before[before.size() - 2] : nullptr;
  const double more = static_cast<double>(ranks) / static_cast<double>(last.ranks);
  const auto at = [&](auto member) {
    const auto now = static_cast<double>(member(last));
    double power = kOfOneRow;
    if (other != nullptr && member(*other) > 0 && now > 0) {
      power = std::log(now / static_cast<double>(member(*other))) /
              std::log(static_cast<double>(last.ranks) / static_cast<double>(other->ranks));
    }
    return now * std::pow(more, power);
  };
  const auto count = [&](auto member) { return std::llround(at(member)); };
  Row out{.phase = last.phase, .ranks = ranks, .all = {}};
  out.all.requests = count([](const Row& r) { return r.all.requests; });
  out.all.in_time = count([](const Row& r) { return r.all.in_time; });
  out.all.bytes = count([](const Row& r) { return r.all.bytes; });
  out.all.longest_key = count([](const Row& r) { return r.all.longest_key; });
  out.all.largest_value = count([](const Row& r) { return r.all.largest_value; });
  for (size_t u = 0; u < kUses; ++u) {
    out.all.uses[u] = {.requests = count([u](const Row& r) { return r.all.uses[u].requests; }),
                       .bytes = count([u](const Row& r) { return r.all.uses[u].bytes; })};
  }
  out.most_requests = count([](const Row& r) { return r.most_requests; });
  out.most_found = count([](const Row& r) { return r.most_found; });
  out.keys = count([](const Row& r) { return r.keys; });
  out.descriptors = count([](const Row& r) { return r.descriptors; });
  out.messages = count([](const Row& r) { return r.messages; });
  out.sent = count([](const Row& r) { return r.sent; });
  out.files_read = count([](const Row& r) { return r.files_read; });
  out.memory = count([](const Row& r) { return r.memory; });
  out.of_server = count([](const Row& r) { return r.of_server; });
  out.seconds = at([](const Row& r) { return r.seconds; });
  out.computed = (other != nullptr ? grouped(other->ranks) + " and " : std::string()) +
                 grouped(last.ranks) + " ranks";
  return out;
}

std::string table_of(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> lines = {
      {"ranks", "phase", "requests a rank", "most that found", "requests", "bytes", "keys",
       "largest value", "longest key", "descriptors", "messages", "files read", "seconds", "memory",
       "store", ""}};
  for (const Row& row : rows) lines.push_back(cells_of(row));
  std::vector<size_t> widths(lines[0].size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (size_t l = 0; l < lines.size(); ++l) {
    out += '|';
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string blank(widths[i] - lines[l][i].size(), ' ');
      const bool is_text = i == 1 || i + 1 == widths.size();
      out += ' ' + (is_text ? lines[l][i] + blank : blank + lines[l][i]) + " |";
    }
    out += '\n';
    if (l > 0) continue;
    for (size_t i = 0; i < widths.size(); ++i) {
      const bool is_text = i == 1 || i + 1 == widths.size();
      if (i == 0) out += '|';
      out += std::string(widths[i] + 1, '-') + (is_text ? "-|" : ":|");
    }
    out += '\n';
  }
  for (const Row& row : rows) {
    const std::string place = grouped(row.ranks) + " ranks, " + row.phase + ": ";
    if (!row.note.empty()) out += place + row.note + '\n';
    if (!row.fault.empty()) out += place + "ended with " + row.fault + '\n';
    if (!row.computed.empty()) {
      out += place + "not run: computed from " + row.computed +
             ", each count by the power of N that joins them\n";
    }
  }
  return out;
}

}  // namespace troupe::control_plane
