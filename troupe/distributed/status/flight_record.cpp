#include "troupe/distributed/status/flight_record.h"

#include <algorithm>
#include <exception>
#include <sstream>

#include "troupe/core/config/json.h"

namespace troupe {
namespace {

Moment moment_of(const FlightRecorder::Raw& raw, int64_t newest) {
  const RankStatus status = unpack_status(raw.done, raw.phase, raw.at);
  const Operation& o = raw.operation;
  Moment out{.ago_s = static_cast<double>(newest - raw.at) * 1e-9,
             .step = status.step(),
             .phase = phase_text(status),
             .event = std::string(to_text(raw.event))};
  if (o.what == Collective::kNone) return out;
  out.operation = to_text(o.what);
  out.group = std::to_string(o.ranks);
  out.group += " ranks from " + std::to_string(o.first);
  out.number = o.number;
  out.bytes = o.bytes;
  return out;
}

}  // namespace

FlightRecord flight_record(const std::vector<const Pulse*>& pulses, int64_t first) {
  int64_t newest = 0;
  for (const Pulse* pulse : pulses) {
    pulse->flight().visit(
        [&](const FlightRecorder::Raw& raw) { newest = std::max(newest, raw.at); });
  }
  FlightRecord out;
  for (const Pulse* pulse : pulses) {
    RankFlight& rank = out.ranks.emplace_back();
    rank.rank = first + static_cast<int64_t>(out.ranks.size()) - 1;
    pulse->flight().visit(
        [&](const FlightRecorder::Raw& raw) { rank.moments.push_back(moment_of(raw, newest)); });
  }
  return out;
}

void write_flight(Fs& fs, const std::string& path, const FlightRecord& record, const Log& log) {
  try {
    std::ostringstream text;
    write_json(text, record);
    text << '\n';
    publish_file(fs, path, text.str());
  } catch (const std::exception& e) {
    log.warning("what the ranks did last is not kept: " + std::string(e.what()));
  }
}

}  // namespace troupe
