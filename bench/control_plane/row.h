// What one phase of a simulated run cost: a row of the table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/control_plane/counted_store.h"

namespace troupe::control_plane {

struct Row {
  std::string phase;
  int64_t ranks = 0;
  Counts all;                         // of all ranks
  int64_t most_requests = 0;          // of one rank
  int64_t most_found = 0;             // of one rank, without those in time
  int64_t keys = 0;                   // alive at its end
  int64_t descriptors = 0;            // of all ranks, at its end
  int64_t messages = 0, sent = 0;     // between ranks, beside the store: their number, their bytes
  int64_t files_read = 0;             // bytes, by all ranks
  double seconds = 0;                 // of the slowest rank, on this machine
  int64_t memory = 0, of_server = 0;  // peaks: of all ranks together, of the store's process
  std::string note = {};              // what is to be said of it
  std::string fault = {};             // an error that a rank ended with
  std::string computed = {};          // out of which rows, if it was not run
};

// Rows of the same phase with fewer ranks, measured, by ranks, as they would be at `ranks`: each
// count by the power of the number of ranks that joins the last two, of one row by the square.
Row computed_row(const std::vector<Row>& before, int64_t ranks);

std::string grouped(int64_t number);  // "1,234"

// Lines for a terminal, the head first; Markdown as well.
std::string table_of(const std::vector<Row>& rows);

}  // namespace troupe::control_plane
