// Which tiles of the generic kernel suit a GPU: one entry a compute capability, and no more than an
// entry to add one. gemm_table.cpp holds them, with the arithmetic of those that nobody has
// measured; bench/gemm_sweep.cu measures a GPU and prints its entry.
#pragma once

#include <span>

namespace troupe {

// tile_n columns of the result, and stages of k in shared memory. n = 0: none is named.
struct GemmTile {
  int n = 0, stages = 0;
  bool operator==(const GemmTile&) const = default;
};

struct TileSpeed {
  int n = 0, stages = 0;
  int blocks = 0;  // of threads, on a multiprocessor at a time
  int rate = 0;    // products a second, on a full GPU; that of 128 columns is 100
  GemmTile tile() const { return {n, stages}; }
};

struct GemmEntry {
  int capability;    // 10 major + minor
  const char* gpus;  // some that have it
  bool measured;     // by the sweep; else computed
  // The widest first; the end is where n is 0. Of 16-bit operands with aligned rows: all others
  // have one tile.
  TileSpeed rows[3];    // GroupedGemm
  TileSpeed weight[3];  // GroupedGemmWeight
};

std::span<const GemmEntry> gemm_entries();  // by rising capability

// That of the highest capability not above this one, or the first.
const GemmEntry& gemm_entry(int capability);

}  // namespace troupe
