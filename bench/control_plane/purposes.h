// Who asks whom for what in a run of N ranks: the table of docs/develop/RUN.md, a row a purpose, with
// what the store was asked for it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/control_plane/counted_store.h"
#include "bench/control_plane/row.h"

namespace troupe::control_plane {

struct Purpose {
  std::string_view what, who, whom, when;
  std::string_view requests;    // of N ranks together, each time
  std::string_view value;       // bytes of one
  std::string_view phase = {};  // whose requests are counted; empty: none is simulated
  Use use = Use::kOther;
};

std::span<const Purpose> purposes();

// "| what | who | of whom | how often | requests of N ranks | bytes of a value |"
std::string cells_of(const Purpose& purpose);

// Markdown: these cells, and of the rows of so many ranks the requests and bytes of each purpose's
// use in its phase; empty cells where the phase was not run.
std::string purpose_table(const std::vector<Row>& rows, int64_t ranks);

}  // namespace troupe::control_plane
