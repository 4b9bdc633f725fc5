// The orders in which the ranks of a pipeline compute their stages. With P ranks, v stages a rank,
// M microbatches, F and B the seconds of a rank's forward and backward of one microbatch:
//   order        warm-up forwards of rank r               idle seconds   graphs held, of stages
//   gpipe        M v                                      (P-1)(F+B)     M v
//   1f1b         min(M, P-1-r)                            (P-1)(F+B)     min(M, P-r)
//   interleaved  min(M v, 2(P-1-r) + (v-1)P)              (P-1)(F+B)/v   min(M v, warm-up + 1)
//   zb1p         as 1f1b                                  see below      min(M, P-r)
//   zbv          as many as fill the V                    see below      min(2 M, 2 P)
//   dualpipev    2(P-1-r), and r+1 of each stage          see below      min(2 M, 2 P + 1)
// M need not be a multiple of P, nor as large. The last three cut B into I, the gradients of
// activations, and W, those of weights: zb1p and zbv each B, dualpipev (DeepSeek-V3's, cut in half)
// as many as fill its first and last part. From M = 2 P - 1 on, of dualpipev M = 2 P, a rank waits
//   zb1p  (P-1)(F + B - 2 W) where W <= I and W <= F: rank r runs W r microbatches later, so that
//         it owes r of them at most
//   zbv   (P-1) F of a stage where F = I = W: F and I in a fixed period, W in the gaps; before its
//         first forward and at the update, where all ranks meet
//   dualpipev  as zbv where F = I = W, else at most (P-1)(F + 2 B - 3 W) of a stage where W <= I
//         and W <= F. In its middle one stage's F stands beside the other's B of another microbatch,
//         as DeepSeek overlaps them; here they run one after the other
// and else never longer than 1f1b.
#pragma once

#include <vector>

#include "troupe/schedule/action.h"

namespace troupe {

// A forward, backward or half of one of all chunks of a stage.
struct StageStep {
  Kind kind;
  int stage;
  int microbatch;
};

// `stages` is a multiple of `ranks`. Stage s is on rank s % ranks, or in a V, which has two stages
// a rank, on the lesser of s and 2 ranks - 1 - s.
struct Pipeline {
  int ranks = 1;
  int stages = 1;
  int microbatches = 1;
  bool vee = false;
};

// What rank `rank` computes.
std::vector<StageStep> gpipe(const Pipeline& pipeline, int rank, bool training);
std::vector<StageStep> one_forward_one_backward(const Pipeline& pipeline, int rank);  // any v
std::vector<StageStep> late_weights(const Pipeline& pipeline, int rank);              // zb1p, v = 1
std::vector<StageStep> late_weights_in_a_vee(const Pipeline& pipeline, int rank);     // zbv
std::vector<StageStep> dual_pipe_in_a_vee(const Pipeline& pipeline, int rank);        // dualpipev

// All forwards of a rank in order. In a V: of its first stage while the first microbatch goes to
// the last rank and comes back, then of either stage in turns. Else: of P microbatches through its
// first stage, of the same ones through its second, and so on; then of the next P. Microbatches
// from M to the next multiple of P are among them where v > 1: an order less some microbatches is
// as sound, and the last group's place in it is as that of all.
std::vector<StageStep> grouped_forwards(const Pipeline& pipeline, int rank);
// Likewise all backwards, through its last stage first.
std::vector<StageStep> grouped_backwards(const Pipeline& pipeline, int rank);

}  // namespace troupe
