// A flight record as a table for people: what each rank did last, and by time which rank waited in
// which collective, how long, and for whom.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/distributed/status/flight_record.h"

namespace troupe {

struct FlightTableOptions {
  int64_t most_ranks = 16;        // columns and rows of ranks
  int64_t most_collectives = 20;  // the newest, and those that a rank waits in
};

// A group is known by its first rank and size alone, so its members are the ranks that recorded a
// collective of that name: of two groups of one first rank and size the table may name a rank of
// the other. Times of ranks compare where one launcher had them, as in RUN/flight.json.
std::string flight_table(const FlightRecord& record, const FlightTableOptions& options = {});

}  // namespace troupe
