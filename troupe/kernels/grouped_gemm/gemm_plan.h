// Which kernel computes a grouped product, with which tile: arithmetic of the host, printable.
//
// The tile follows from the width of the result and the type alone, never from the number of rows
// or experts, so that a row's bits depend on neither (grid and order of tiles may).
#pragma once

#include <cstdint>
#include <string>

#include "troupe/core/number/dtype.h"

namespace troupe {

// kSm90 needs that chip's own instructions (TMA, wgmma) and a plain product (kernels/moe_sm90);
// kGeneric runs on sm_80 and all later.
enum class Path { kGeneric, kSm90 };

struct GemmProblem {
  Dtype dtype;
  int64_t experts;
  int64_t rows;  // of the result: the bound on all experts' rows together, or M of each expert, ...
  bool rows_are_routed;  // ... which is the first if this is set
  int64_t cols;          // of the result
  bool aligned;          // every row of both operands begins at a multiple of 16 bytes
  bool plain = false;    // bf16 without gaps, widths multiples of 64, and nothing but the product
};

struct DeviceLimits {
  int capability = 80;  // 10 major + minor
  int processors = 1;   // SMs
  int64_t shared_per_block = 0;
  int64_t shared_per_processor = 0;
};

struct GemmPlan {
  Path path = Path::kGeneric;
  int tile_m = 0, tile_n = 0, depth = 0;  // depth: of k, in one stage
  int stages = 0, threads = 0;
  bool aligned = false;  // copies of 16 bytes; else element by element
  int64_t shared_bytes = 0;
  int64_t tiles = 0;   // at most
  int64_t blocks = 0;  // each takes tiles i, i + blocks, ...
};

// Throws where the device's shared memory is too small or the tiles are too many to be numbered.
GemmPlan choose_plan(const GemmProblem& problem, const DeviceLimits& limits);

std::string to_text(const GemmPlan& plan);

}  // namespace troupe
