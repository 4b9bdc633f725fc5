// The CUDA half of the kernels as a table. libtroupe.so holds no CUDA code and links no CUDA
// library; libtroupe_cuda.so is opened at run time, where there is a driver, and fills the table
// (ops/support/cuda_plugin.h). So one library serves every machine, and a process without a GPU
// starts in 0.3 s and 116 MB in place of 0.5 s and 470 MB.
//
// One line an entry point: X(name, Args) stands for `void name_cuda(const Args&, cudaStream_t)`.
#pragma once

#include "troupe/core/device/cuda_stream.h"

#define TROUPE_CUDA_KERNELS(X)                             \
  X(accumulate, Accumulate)                                \
  X(activation, Activation)                                \
  X(activation_backward, ActivationBackward)               \
  X(adamw, AdamW)                                          \
  X(await_flags, AwaitFlags)                               \
  X(binned_plan, BinnedPlan)                               \
  X(block_dds, BlockDds)                                   \
  X(block_dsd, BlockDsd)                                   \
  X(block_sdd, BlockSdd)                                   \
  X(clip_scale, ClipScale)                                 \
  X(combine, Combine)                                      \
  X(cross_entropy, CrossEntropy)                           \
  X(cross_entropy_backward, CrossEntropyBackward)          \
  X(cumsum, Cumsum)                                        \
  X(dequantize, Dequantize)                                \
  X(dequantize_fp8, DequantizeFp8)                         \
  X(drop_over_capacity, DropOverCapacity)                  \
  X(drop_over_capacity_backward, DropOverCapacityBackward) \
  X(expert_choice, ExpertChoice)                           \
  X(expert_choice_backward, ExpertChoiceBackward)          \
  X(fp8_row_tiles, Fp8RowTiles)                            \
  X(fp8_weight_tiles, Fp8WeightTiles)                      \
  X(group_bias, GroupBias)                                 \
  X(group_bias_backward, GroupBiasBackward)                \
  X(grouped_gemm, GroupedGemm)                             \
  X(grouped_gemm_weight, GroupedGemmWeight)                \
  X(histogram, Histogram)                                  \
  X(index_check, IndexCheck)                               \
  X(jitter, Jitter)                                        \
  X(list_copies, ListCopies)                               \
  X(low_bit_pack, LowBitPack)                              \
  X(low_bit_unpack, LowBitUnpack)                          \
  X(moe_down_fp8_sm90, MoeDownFp8Sm90)                     \
  X(moe_down_grad_sm90, MoeDownGradSm90)                   \
  X(moe_down_sm90, MoeDownSm90)                            \
  X(moe_hidden_grad_fp8_sm90, MoeHiddenGradFp8Sm90)        \
  X(moe_hidden_grad_sm90, MoeHiddenGradSm90)               \
  X(moe_hidden_tiles_fp8_sm90, MoeHiddenTilesFp8Sm90)      \
  X(moe_rows_grad_fp8_sm90, MoeRowsGradFp8Sm90)            \
  X(moe_rows_grad_sm90, MoeRowsGradSm90)                   \
  X(moe_up_fp8_sm90, MoeUpFp8Sm90)                         \
  X(moe_up_grad_sm90, MoeUpGradSm90)                       \
  X(moe_up_sm90, MoeUpSm90)                                \
  X(moe_weight_grad_fp8_sm90, MoeWeightGradFp8Sm90)        \
  X(norm, Norm)                                            \
  X(norm_backward, NormBackward)                           \
  X(normal_noise, NormalNoise)                             \
  X(pack_rows, PackRows)                                   \
  X(peer_combine, PeerCombine)                             \
  X(peer_rows, PeerRows)                                   \
  X(permute, Permute)                                      \
  X(quantile, Quantile)                                    \
  X(quantize, Quantize)                                    \
  X(quantize_fp8, QuantizeFp8)                             \
  X(radix_sort, RadixSort)                                 \
  X(replicate, Replicate)                                  \
  X(replicate_backward, ReplicateBackward)                 \
  X(rotary, Rotary)                                        \
  X(route, Route)                                          \
  X(route_backward, RouteBackward)                         \
  X(routing_plan, RoutingPlan)                             \
  X(row_scores, RowScores)                                 \
  X(signal_flags, SignalFlags)                             \
  X(sinkhorn, Sinkhorn)                                    \
  X(slot_dot, SlotDot)                                     \
  X(sum_squares, SumSquares)                               \
  X(tell_copies, TellCopies)                               \
  X(topology, Topology)                                    \
  X(unpack_rows, UnpackRows)                               \
  X(zero_rows, ZeroRows)

namespace troupe {

#define TROUPE_DECLARE(name, Args) struct Args;
TROUPE_CUDA_KERNELS(TROUPE_DECLARE)
#undef TROUPE_DECLARE

struct CudaKernels {
#define TROUPE_FIELD(name, Args) void (*name)(const Args&, cudaStream_t) = nullptr;
  TROUPE_CUDA_KERNELS(TROUPE_FIELD)
#undef TROUPE_FIELD
};

}  // namespace troupe
