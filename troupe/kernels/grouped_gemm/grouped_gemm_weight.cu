// c_e = a^T b over the rows of each expert. See tile_product.cuh for how a tile is computed.
#include "troupe/kernels/device/tile_order.cuh"
#include "troupe/kernels/device/tile_product.cuh"
#include "troupe/kernels/grouped_gemm/grouped_gemm.h"
#include "troupe/kernels/grouped_gemm/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"

namespace troupe {
namespace {

using tile::Major;

constexpr int kM = 128;

// Both sources hold row indices: 255 registers are enough for 64x64 of a tile only where eight
// warps share the copies.
template <class T, int kN>
using WeightProduct = tile::Product<T, kM, kN, Major::kMN, Major::kMN, kN == 256 ? 64 : 32>;

template <class T>
struct Problem {
  Mat<const T> a, b;
  void* c;
  int64_t ld_c;
  const int32_t *expert_offset, *row_src;
  int experts, m, n;
  bool gather_a, gather_b, c_is_f32, vector, accumulate;
};

template <class T, int kN, bool kAligned>
struct WeightWork {
  using Product = WeightProduct<T, kN>;
  using SourceA = tile::Source<T, kM, Major::kMN, Product::kThreads, kAligned>;
  using SourceB = tile::Source<T, kN, Major::kMN, Product::kThreads, kAligned>;
  struct Tile {
    int index;  // all else is found again where it is needed: registers are scarce
  };
  struct Part {
    int expert, row, col;  // row and column of this expert's result
  };

  const Problem<T>& p;

  __device__ bool find(int index, Tile& t) const {
    t.index = index;
    return part(t).expert < p.experts;
  }

  __device__ int open(const Tile& t, SourceA& a, SourceB& b) const {
    const Part at = part(t);
    const int begin = p.expert_offset[at.expert], end = p.expert_offset[at.expert + 1];
    a.open({.data = p.a.data + at.row,
            .ld = static_cast<int>(p.a.ld),
            .cols = p.m - at.row,
            .begin = begin,
            .end = end,
            .src = p.row_src,
            .gather = p.gather_a});
    b.open({.data = p.b.data + at.col,
            .ld = static_cast<int>(p.b.ld),
            .cols = p.n - at.col,
            .begin = begin,
            .end = end,
            .src = p.row_src,
            .gather = p.gather_b});
    return tile::tiles(end - begin, tile::kDepth<T>);
  }

  __device__ void store(const Tile& t, const Product& product) const {
    if constexpr (!std::is_same_v<T, float>) {
      if (!p.c_is_f32) return product.store(output<T>(t), tile::Plain{});
    }
    product.store(output<float>(t), tile::Plain{});
  }

 private:
  __device__ Part part(const Tile& t) const {
    const int down = tile::tiles(p.m, kM), across = tile::tiles(p.n, kN);
    const int expert = t.index / (down * across);
    const auto [m, n] = tile::place(t.index - expert * down * across, down, across);
    return {expert, m * kM, n * kN};
  }

  template <class Out>
  __device__ tile::Output<Out> output(const Tile& t) const {
    const Part at = part(t);
    Out* first = static_cast<Out*>(p.c) + (int64_t{at.expert} * p.m + at.row) * p.ld_c + at.col;
    return {first, p.ld_c, min(kM, p.m - at.row), min(kN, p.n - at.col), p.vector, p.accumulate};
  }
};

// A block takes tiles blockIdx.x, + gridDim.x, ... of all experts' results, so that each expert's
// tiles are spread over all processors, however uneven the experts are.
template <class T, int kN, int kStages, bool kAligned>
__global__ void __launch_bounds__(WeightProduct<T, kN>::kThreads)
    grouped_gemm_weight_kernel(const __grid_constant__ Problem<T> p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  WeightWork<T, kN, kAligned> work{p};
  tile::multiply_tiles<kStages>(work, shared);
}

template <class T>
Problem<T> problem(const GroupedGemmWeight& x) {
  return {.a = x.a.as<T>(),
          .b = x.b.as<T>(),
          .c = x.c.data,
          .ld_c = x.c.ld,
          .expert_offset = x.expert_offset,
          .row_src = x.row_src,
          .experts = static_cast<int>(x.experts),
          .m = static_cast<int>(x.a.cols),
          .n = static_cast<int>(x.b.cols),
          .gather_a = x.gather_a,
          .gather_b = x.gather_b,
          .c_is_f32 = x.c.dtype == Dtype::kF32,
          .vector = grouped::stores_vectors(x.c),
          .accumulate = x.accumulate};
}

// Hopper's kernel would multiply a pad's zeros by what the other operand holds.
bool is_plain(const GroupedGemmWeight& x) {
  const bool gathers = x.gather_a || x.gather_b;
  return grouped::plain(x.a) && grouped::plain(x.b) && grouped::aligned(x.c) &&
         x.c.ld == x.c.cols && x.experts <= kMaxExpertsSm90 &&
         (!gathers || (x.finite_pads && x.gather_a != x.gather_b));
}

}  // namespace

void grouped_gemm_weight_cuda(const GroupedGemmWeight& x, cudaStream_t stream) {
  validate(x);
  const GemmPlan plan = choose_plan({.dtype = x.a.dtype,
                                     .experts = x.experts,
                                     .rows = x.a.cols,
                                     .rows_are_routed = false,
                                     .cols = x.b.cols,
                                     .aligned = grouped::aligned(x.a) && grouped::aligned(x.b),
                                     .plain = is_plain(x),
                                     .tile = x.tile},
                                    grouped::current_device());
  if (plan.path == Path::kSm90) {
    return weight_product_sm90_cuda({x.experts,
                                     x.expert_offset,
                                     x.gather_a || x.gather_b ? x.row_src : nullptr,
                                     x.a,
                                     x.b,
                                     x.c,
                                     x.gather_a,
                                     x.gather_b,
                                     x.accumulate,
                                     x.waves,
                                     {x.segment_rows, x.workspace}},
                                    stream);
  }
  const tile::LaunchShape shape{plan.blocks, plan.threads, plan.shared_bytes};
  dispatch_float(x.a.dtype, [&]<class T>() {
    grouped::dispatch_tile<T, false>(plan, [&]<int kN, int kStages, bool kAligned>() {
      auto* kernel = grouped_gemm_weight_kernel<T, kN, kStages, kAligned>;
      tile::launch(kernel, shape, stream, problem<T>(x));
    });
  });
}

}  // namespace troupe
