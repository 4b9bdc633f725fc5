// The combine weights in the order of the routed rows, and their gradients on the way back.
//
//   forward:  score[r]        = weights[row_slot[r]], 0 where row_slot[r] = -1 (pads, unused rows)
//   backward: grad_weights[s] = grad_score[slot_row[s]], 0 where slot_row[s] = -1 (dropped, masked)
//
// Both are a gather, so each output is written once and nothing is summed. float, or double for
// f64.
#pragma once

#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/view.h"

namespace troupe {

// out[i] = index[i] < 0 ? 0 : in[index[i]]
struct RowScores {
  MatRef in;                       // [m, 1]  f32 or f64: weights, or grad_score
  const int32_t* index = nullptr;  // [n]     row_slot, or slot_row; below m
  MutRef out;                      // [n, 1]  score, or grad_weights, of in's type
};

void validate(const RowScores& args);
int64_t bytes_moved(const RowScores& args);

void row_scores_ref(const RowScores& args);
void row_scores_cuda(const RowScores& args,
                     cudaStream_t stream);  // f32; the CPU reads weights in place

}  // namespace troupe
