// Sums each token's rows out of the memory of several ranks: how results come back where ranks
// reach each other's memory.
//
//   out[t, :] = sum over c < C of y[place[t, c], :],   y[w N + i, :] = row i of from[w]
//
// Added in the order c = 0 .. C-1, in float (double for f64), rounded once (rule P2), as
// kernels/combine does with its slots: the same bits. A place of -1 adds nothing; every element of
// out is written, 0 where a token has no row. The order of the places is the mode of the exchange:
// ranks, or slots. Only rows that are named are read.
//
// from[w] is any memory that this rank can read, rows of D elements of out's type, packed.
#pragma once

#include <array>
#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"
#include "troupe/core/device/view.h"
#include "troupe/kernels/peer_flags/peer_flags.h"

namespace troupe {

struct PeerCombine {
  int64_t peers = 0;                              // W
  std::array<const void*, kMostPeers> from = {};  // [W], of [N, D] each
  int64_t each = 0;                               // N
  int64_t choices = 0;                            // C
  const int32_t* place = nullptr;                 // [T, C], below W N
  MutRef out;                                     // [T, D]  out, packed
};

void validate(const PeerCombine& args);
int64_t bytes_moved(const PeerCombine& args);  // as if there were a row for each place

void peer_combine_ref(const PeerCombine& args);
void peer_combine_cpu(const PeerCombine& args, const Pool& pool);
void peer_combine_cuda(const PeerCombine& args, cudaStream_t stream);

}  // namespace troupe
