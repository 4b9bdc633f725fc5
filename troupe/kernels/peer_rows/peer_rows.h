// Rows out of the memory of several ranks into a buffer of this one: what moves tokens to their
// experts where ranks reach each other's memory.
//
//   out[(w N + i) P + p] = from[w][i]   for w < W, i < N, p < P, where the row is wanted
//                          `fill` in every byte, where it is not; fill -1: it stays as it is
//
// Row r is wanted if some wanted[r, c] >= 0, c < C: `wanted` holds the local expert of each choice,
// -1 for none. Without `wanted` every row is. Only wanted rows are read, so of a token's row as
// many bytes cross a link as ranks have an expert of it. P > 1 gives each choice of a token a row
// of its own.
//
// from[w] is any memory that this rank can read, its own too. Rows are bytes, packed; whole words
// of 16 bytes move where pointers and row_bytes allow it, so on a GPU they should. N, P or
// row_bytes may make it nothing. Sources must not overlap out.
#pragma once

#include <array>
#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/kernels/peer_flags/peer_flags.h"

namespace troupe {

struct PeerRows {
  int64_t peers = 0;                                 // W
  std::array<const uint8_t*, kMostPeers> from = {};  // [W], of [N, row_bytes] each
  int64_t each = 0;                                  // N
  int64_t repeats = 1;                               // P
  int64_t row_bytes = 0;
  int64_t choices = 0;              // C
  const int32_t* wanted = nullptr;  // [W N P, C]; null: all
  int fill = -1;                    // 0 .. 255, or -1
  uint8_t* out = nullptr;           // [W N P, row_bytes]  out

  int64_t rows() const { return peers * each * repeats; }
};

void validate(const PeerRows& args);
int64_t bytes_moved(const PeerRows& args);  // as if every row were wanted

void peer_rows_ref(const PeerRows& args);
void peer_rows_cpu(const PeerRows& args, const Pool& pool);
void peer_rows_cuda(const PeerRows& args, cudaStream_t stream);

}  // namespace troupe
