// The host's half of the launches of weight gradients, whose sums are cut into segments or not.
#pragma once

#include "troupe/core/number/round.h"
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"
#include "troupe/kernels/moe_sm90/weight_epilogue.cuh"
#include "troupe/kernels/moe_sm90/weight_gemm.cuh"

namespace troupe::sm90 {

template <WeightStore kStore, bool kTransposed, bool kCut>
struct WeightGrad {
  using Epilogue = StoreWeight<kStore, kTransposed>;
  static constexpr bool kSegments = kCut;
  using G = Geometry<kWeightGradRing.depth, kWeightGradRing.slots, Epilogue::kStagingBytes>;
};

// A product as its launcher sees it: the operand that may be gathered, the packed one, the result.
struct WeightLaunch {
  PlanRef plan;
  MatRef source, packed;
  MutRef out;
  bool accumulate;
  SegmentsSm90 segments;
  int waves;
  cudaStream_t stream;
};

template <WeightStore kStore, bool kTransposed, bool kCut>
void launch_weight_grad(const WeightLaunch& x) {
  using Spec = WeightGrad<kStore, kTransposed, kCut>;
  const int64_t rows = x.plan.rows;
  const auto columns_m = static_cast<int>(x.source.cols),
             columns_n = static_cast<int>(x.packed.cols);
  WeightGemm gemm{
      static_cast<const uint8_t*>(x.source.data),
      static_cast<const uint8_t*>(x.packed.data),
      x.plan.row_src,
      x.plan.expert_offset,
      static_cast<int>(x.plan.experts),
      columns_m,
      columns_n,
      static_cast<int>(ceil_div(columns_m, kClusterM)),
      static_cast<int>(ceil_div(columns_n, kTileN)),
      choose_weight_plan(rows, x.plan.experts, kCut ? x.segments.rows : 0).stagger_cycles};
  const int64_t tiles = int64_t{gemm.m_pairs} * gemm.n_tiles;
  int64_t items = gemm.experts * tiles;
  if constexpr (kCut) {
    const SegmentSlots slots = segment_slots(rows, x.plan.experts, x.segments.rows);
    gemm.segments = {static_cast<int>(x.segments.rows), static_cast<int*>(x.segments.workspace),
                     reinterpret_cast<float*>(static_cast<char*>(x.segments.workspace) +
                                              counter_bytes(slots.held * tiles))};
    items = slots.all * tiles;
    TROUPE_CUDA_CHECK(cudaMemsetAsync(gemm.segments.arrived, 0,
                                      static_cast<size_t>(counter_bytes(slots.held * tiles)),
                                      x.stream));
  }
  // Without rows there may be no memory; the map must still name some.
  const CUtensorMap packed =
      slabs_map(rows > 0 ? x.packed.data : x.out.data, 1, rows, columns_n, Spec::G::kK);
  gemm.boxes_of_a = x.plan.row_src == nullptr && rows > 0;
  const CUtensorMap a =
      gemm.boxes_of_a ? slabs_map(x.source.data, 1, rows, columns_m, Spec::G::kK) : packed;
  typename Spec::Epilogue::Params store{{}, x.out.data, columns_m, columns_n};
  if (kStore == WeightStore::kBf16) {
    constexpr int kColumns = Spec::Epilogue::kColumns;
    store.map = rows_map(x.out.data, x.out.rows, x.out.cols, kTransposed ? 64 : kColumns,
                         kTransposed ? kColumns : 64);
  }
  launch_persistent<Spec::G::kBytes>(weight_gemm_kernel<Spec>, {items, x.waves, x.stream}, gemm,
                                     store, a, packed);
}

template <bool kTransposed, bool kCut>
void weight_grad(const WeightLaunch& x) {
  if (x.out.dtype == Dtype::kBF16) {
    launch_weight_grad<WeightStore::kBf16, kTransposed, kCut>(x);
  } else if (x.accumulate) {
    launch_weight_grad<WeightStore::kAddF32, kTransposed, kCut>(x);
  } else {
    launch_weight_grad<WeightStore::kF32, kTransposed, kCut>(x);
  }
}

// In a file of its own, for it takes as long to compile: sums that are cut.
void weight_grad_in_segments(const WeightLaunch& x, bool transposed);

}  // namespace troupe::sm90
