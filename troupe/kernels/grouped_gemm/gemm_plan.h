// Which kernel computes a grouped product, with which tile: arithmetic of the host, printable.
//
// A tile changes no bit: whatever its columns and stages, each element is summed over k in the same
// steps of 16 (16-bit operands, one mma.sync a step) or of 1 (fp32) from the first on, and padded
// with zeros to the same multiple of `depth`. So the choice may follow from the number of rows and
// of experts and from the GPU, and a row's bits still depend on none of them. Whether a product
// takes kSm90, which sums otherwise, follows from type, widths, and the code that the build has for
// the device.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "troupe/core/number/dtype.h"
#include "troupe/kernels/grouped_gemm/gemm_table.h"

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
  GemmTile tile = {};    // this one, of the generic kernel, in place of a choice
};

struct DeviceLimits {
  int capability = 80;  // 10 major + minor
  int processors = 1;   // SMs
  int64_t shared_per_block = 0;
  int64_t shared_per_processor = 0;
  bool sm90_code = false;  // it runs this build's code for sm_90a (kernels/device/build_code.h)
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

// The tiles that the generic kernel was built with for such a problem, the widest first.
std::span<const GemmTile> built_tiles(const GemmProblem& problem);

// The entry's tile with the least of (tiles + multiprocessors) n / rate, of those that fit into
// shared memory and were built; the wider of two alike. Beside its share of the tiles, each
// multiprocessor spends a tile's time on the first stages and on the end, when others have none.
TileSpeed choose_tile(const GemmEntry& entry, const GemmProblem& problem,
                      const DeviceLimits& limits);

// By the entry of the device's capability. Throws where the device's shared memory is too small,
// the tiles are too many to be numbered, or the tile that is asked for was not built.
GemmPlan choose_plan(const GemmProblem& problem, const DeviceLimits& limits);

std::string to_text(const GemmPlan& plan);

}  // namespace troupe
