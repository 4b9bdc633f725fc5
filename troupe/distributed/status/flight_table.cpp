#include "troupe/distributed/status/flight_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include "troupe/core/text/columns.h"

namespace troupe {
namespace {

// What one rank recorded of one collective; seconds before the newest moment, NaN: not recorded.
struct RankCall {
  double issued = NAN, wait = NAN, waited = NAN;

  // The earliest that is recorded: the ring of moments forgets the oldest.
  double came() const { return !std::isnan(issued) ? issued : !std::isnan(wait) ? wait : waited; }
  bool waits() const { return !std::isnan(wait) && std::isnan(waited); }
};

struct CollectiveCalls {
  std::string group;
  int64_t number = 0, step = 0;
  std::map<int64_t, std::string> operation;  // by rank
  std::map<int64_t, RankCall> arrivals;      // by rank
  std::vector<int64_t> missing;              // ranks of the group that have not come

  double first() const {
    double out = 0;
    for (const auto& [rank, arrival] : arrivals) out = std::fmax(out, arrival.came());
    return out;
  }
  bool has_waiting() const {
    return std::any_of(arrivals.begin(), arrivals.end(),
                       [](const auto& entry) { return entry.second.waits(); });
  }
  std::string name() const {
    return operation.begin()->second + ' ' + std::to_string(number) + " of " + group;
  }
};

std::string duration_text(double seconds) {
  char text[48];
  const bool small = seconds < 1;
  std::snprintf(text, sizeof(text), small ? "%.1f ms" : "%.2f s", small ? 1e3 * seconds : seconds);
  return text;
}

// "rank 3", "ranks 3, 5 and 7 more"
std::string ranks_text(const std::vector<int64_t>& ranks) {
  constexpr size_t kShown = 4;
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kShown) out += " and " + std::to_string(ranks.size() - kShown) + " more";
  return out;
}

using CallsByName = std::map<std::pair<std::string, int64_t>, CollectiveCalls>;

void add_moment(CallsByName& calls, int64_t rank, const Moment& moment) {
  if (moment.operation.empty()) return;
  CollectiveCalls& of = calls[{moment.group, moment.number}];
  of.group = moment.group;
  of.number = moment.number;
  of.step = std::max(of.step, moment.step);
  of.operation[rank] = moment.operation;
  RankCall& arrival = of.arrivals[rank];
  if (moment.event == "issue") arrival.issued = moment.ago_s;
  if (moment.event == "wait") arrival.wait = moment.ago_s;
  if (moment.event == "waited") arrival.waited = moment.ago_s;
}

// A rank has not come where the newest number that it recorded of the group is an older one.
void find_missing(CallsByName& calls) {
  std::map<std::string, std::map<int64_t, int64_t>> newest;  // group -> rank -> number
  for (const auto& [name, of] : calls) {
    for (const auto& [rank, arrival] : of.arrivals) {
      int64_t& number = newest[of.group][rank];
      number = std::max(number, of.number);
    }
  }
  for (auto& [name, of] : calls) {
    for (const auto& [rank, number] : newest[of.group]) {
      if (number < of.number) of.missing.push_back(rank);
    }
  }
}

// All collectives, the oldest first.
std::vector<CollectiveCalls> calls_in(const FlightRecord& record) {
  CallsByName calls;
  for (const RankFlight& rank : record.ranks) {
    for (const Moment& moment : rank.moments) add_moment(calls, rank.rank, moment);
  }
  find_missing(calls);
  std::vector<CollectiveCalls> out;
  for (auto& [name, of] : calls) out.push_back(std::move(of));
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.first() > b.first(); });
  return out;
}

// Who kept the others: a rank that has not come, or the one that came last.
std::string who_was_last(const CollectiveCalls& of) {
  const std::string& wanted = of.operation.begin()->second;
  for (const auto& [rank, operation] : of.operation) {
    if (operation != wanted) return "rank " + std::to_string(rank) + " issued " + operation;
  }
  if (!of.missing.empty()) {
    return ranks_text(of.missing) + (of.missing.size() == 1 ? " has" : " have") + " not come";
  }
  if (of.arrivals.size() == 1) return "no other rank has a record of it";
  auto last = of.arrivals.begin();
  for (auto it = of.arrivals.begin(); it != of.arrivals.end(); ++it) {
    if (it->second.came() < last->second.came()) last = it;
  }
  return "rank " + std::to_string(last->first) + ", " +
         duration_text(of.first() - last->second.came()) + " after the first";
}

std::string cell_of(const CollectiveCalls& of, int64_t rank) {
  const auto found = of.arrivals.find(rank);
  if (found == of.arrivals.end()) {
    const bool missing = std::find(of.missing.begin(), of.missing.end(), rank) != of.missing.end();
    return missing ? "-" : "";
  }
  const RankCall& arrival = found->second;
  if (arrival.waits()) return "waits " + duration_text(arrival.wait);
  if (!std::isnan(arrival.wait)) return duration_text(arrival.wait - arrival.waited);
  return "issued";
}

// The collective that the rank's newest moments leave it waiting in.
const CollectiveCalls* waiting_in(const std::vector<CollectiveCalls>& calls, int64_t rank) {
  for (auto it = calls.rbegin(); it != calls.rend(); ++it) {
    const auto found = it->arrivals.find(rank);
    if (found != it->arrivals.end() && found->second.waits()) return &*it;
  }
  return nullptr;
}

std::vector<std::string> rank_row(const RankFlight& of, const std::vector<CollectiveCalls>& calls) {
  std::vector<std::string> row = {std::to_string(of.rank)};
  if (of.moments.empty()) {
    row.insert(row.end(), {"-", "-", "-", "nothing"});
    return row;
  }
  const Moment& last = of.moments.back();
  row.insert(row.end(), {std::to_string(last.step), last.phase, duration_text(last.ago_s)});
  const CollectiveCalls* const waits = waiting_in(calls, of.rank);
  if (waits != nullptr) {
    row.push_back("waits in " + waits->name() + ": " + who_was_last(*waits));
  } else if (last.operation.empty()) {
    row.emplace_back("began the phase");
  } else {
    row.push_back(last.event + ' ' + last.operation + ' ' + std::to_string(last.number) + " of " +
                  last.group);
  }
  return row;
}

// Leaves out the oldest in which nobody waits, until `most` are left.
std::vector<CollectiveCalls> newest_of(std::vector<CollectiveCalls> calls, int64_t most) {
  int64_t surplus = std::ssize(calls) - most;
  std::erase_if(calls, [&](const CollectiveCalls& of) {
    const bool goes = surplus > 0 && !of.has_waiting();
    surplus -= goes ? 1 : 0;
    return goes;
  });
  return calls;
}

std::string left_out(size_t shown, size_t all, const std::string& what) {
  if (shown == all) return "";
  return std::to_string(all - shown) + " more " + what + " are not shown\n";
}

}  // namespace

std::string flight_table(const FlightRecord& record, const FlightTableOptions& options) {
  const std::vector<CollectiveCalls> calls = calls_in(record);
  const auto shown = static_cast<size_t>(
      std::min(std::max<int64_t>(options.most_ranks, 0), std::ssize(record.ranks)));
  std::vector<std::vector<std::string>> rows = {{"rank", "step", "phase", "ago", "last"}};
  for (size_t i = 0; i < shown; ++i) rows.push_back(rank_row(record.ranks[i], calls));
  std::string out = in_columns(rows) + left_out(shown, record.ranks.size(), "ranks");
  if (calls.empty()) return out + "no collective is recorded\n";

  const std::vector<CollectiveCalls> newest = newest_of(calls, options.most_collectives);
  rows = {{"ago", "step", "collective"}};
  for (size_t i = 0; i < shown; ++i) {
    rows[0].push_back("rank " + std::to_string(record.ranks[i].rank));
  }
  rows[0].emplace_back("last to come");
  for (const CollectiveCalls& of : newest) {
    std::vector<std::string> row = {duration_text(of.first()), std::to_string(of.step), of.name()};
    for (size_t i = 0; i < shown; ++i) row.push_back(cell_of(of, record.ranks[i].rank));
    row.push_back(who_was_last(of));
    rows.push_back(std::move(row));
  }
  return out +
         "\nHow long each rank waited in the newest collectives; ago: before the newest moment\n" +
         in_columns(rows) + left_out(newest.size(), calls.size(), "older collectives");
}

}  // namespace troupe
