// How the products of moe_sm90.h are run, as host arithmetic: the same bits whatever is chosen.
#pragma once

#include <cstdint>

namespace troupe {

struct MoeSm90Plan {
  // Tiles that share operands are kept in step along a long sum, so that each operand comes from
  // device memory once: all whole tiles first, the experts' rests after them. A short sum is the
  // other way about: there the blocks' starts are spread over a tile's time, so that some store
  // while others multiply.
  bool in_step = false;
  int stagger_cycles = 0;
};

// For a sum of `length` terms: k of a product over rows.
MoeSm90Plan choose_rows_plan(int64_t length);

// For weight gradients, whose sums run over an expert's rows: `rows` of all `experts`.
MoeSm90Plan choose_weight_plan(int64_t rows, int64_t experts);

}  // namespace troupe
