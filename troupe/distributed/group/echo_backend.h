// One process as a rank of many that are not there: each other rank is taken to have the same
// tokens, and so sends what this one sends to itself.
//   sum       times the ranks                  shards   times the ranks, this rank's part
//   gather    this rank's part, repeated       exchange each rank's rows are those to this rank
// Rows that come back from others' experts are stand-ins. How many rows and bytes there are is as
// it would be, and so what a rank holds and computes; values and losses are not.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace troupe {

c10::intrusive_ptr<c10d::Backend> echo_backend(int rank, int size);

}  // namespace troupe
