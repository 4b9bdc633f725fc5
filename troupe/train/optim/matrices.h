// A parameter's box as matrices, for optimizers that work on whole ones.
#pragma once

#include <cstdint>

#include "troupe/distributed/params/param.h"

namespace troupe {

// The matrices in a parameter's box: its last two dimensions are a matrix, the others count them. A
// box with fewer dimensions holds a vector, or one vector per expert.
struct Matrices {
  explicit Matrices(const Param& p) {
    const size_t fewest = p.per_expert ? 3 : 2;
    if (p.size.size() < fewest) {
      columns = p.size.empty() ? 1 : p.size.back();
      return;
    }
    whole = true;
    rows = p.size[p.size.size() - 2], columns = p.size.back();
  }
  bool whole = false;  // matrices and not vectors
  int64_t rows = 1, columns = 1;
  int64_t numel() const { return rows * columns; }
};

}  // namespace troupe
