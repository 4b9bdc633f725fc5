// How the rows are cut, and the workspace of the CUDA path: arithmetic on shapes alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "troupe/core/number/round.h"
#include "troupe/kernels/sinkhorn/sinkhorn.h"

namespace troupe::sinkhorn_detail {

constexpr int64_t kMinRowsPerChunk = 16;
constexpr int64_t kMaxChunks = 512;

inline int64_t rows_per_chunk(int64_t tokens) {
  return std::max(kMinRowsPerChunk, ceil_div(tokens, kMaxChunks));
}

// Below this sum of n P over a column, float's smallest numbers may hide part of it.
inline constexpr double kSafeSum = 1e-20;

struct Workspace {
  int64_t* counts = nullptr;  // [chunks]     valid rows
  float* parts = nullptr;     // [E, chunks]  sums of n P
  double* change = nullptr;   // [E]          |dv|
  double* v = nullptr;        // [E]
  double* u = nullptr;        // [T]          plus ln n; NaN: the row takes no part
  int64_t chunks = 0;
  int64_t bytes = 0;
};

inline Workspace workspace(const Sinkhorn& a) {
  const int64_t T = a.logits.rows, E = a.logits.cols;
  auto* base = static_cast<char*>(a.workspace);
  Workspace w;
  w.chunks = ceil_div(T, rows_per_chunk(T));
  const auto take = [&]<class V>(V*& pointer, int64_t n) {
    if (base != nullptr) pointer = reinterpret_cast<V*>(base + w.bytes);
    w.bytes += round_up(n * static_cast<int64_t>(sizeof(V)), 16);
  };
  take(w.counts, w.chunks);
  take(w.parts, E * w.chunks);
  take(w.change, E);
  take(w.v, E);
  take(w.u, T);
  return w;
}

}  // namespace troupe::sinkhorn_detail
