// What ranks did last, as a file: RUN/flight.json of all ranks of a launcher, which reads what they
// left behind, or RUN/flight-rank-N.json of one that ends by itself. Beside each other, the lists
// show which rank did not come to which operation: `group` and `number` are the same on all ranks
// of a group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"
#include "troupe/distributed/status/pulse.h"

namespace troupe {

struct Moment {
  double ago_s = 0;  // before the newest of all ranks in the record
  int64_t step = 0;
  std::string phase = {};      // "forward 3/8"
  std::string event = {};      // begin: of the phase; issue, wait, waited: of the operation
  std::string operation = {};  // "gather"; empty: none
  std::string group = {};      // "4 ranks from 0"
  int64_t number = 0, bytes = 0;
  static void visit(auto& m, auto&& f) {
    f("ago_s", m.ago_s);
    f("step", m.step);
    f("phase", m.phase);
    f("event", m.event);
    f("operation", m.operation);
    f("group", m.group);
    f("number", m.number);
    f("bytes", m.bytes);
  }
};

struct RankFlight {
  int64_t rank = 0;
  std::vector<Moment> moments = {};  // the newest is the last
  static void visit(auto& r, auto&& f) {
    f("rank", r.rank);
    f("moments", r.moments);
  }
};

struct FlightRecord {
  std::vector<RankFlight> ranks = {};
  static void visit(auto& r, auto&& f) { f("ranks", r.ranks); }
};

// The record of ranks first, first + 1, ...
FlightRecord flight_record(const std::vector<const Pulse*>& pulses, int64_t first = 0);
// Publishes it; what fails is a warning, since it must not hide the error that is reported.
void write_flight(Fs& fs, const std::string& path, const FlightRecord& record, const Log& log);

}  // namespace troupe
