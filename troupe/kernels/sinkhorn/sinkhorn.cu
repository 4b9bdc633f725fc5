#include <cooperative_groups.h>

#include <algorithm>
#include <cstdint>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/topk.cuh"
#include "troupe/kernels/sinkhorn/geometry.h"

namespace troupe {
namespace {

using sinkhorn_detail::kSafeSum;
using sinkhorn_detail::Workspace;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpLanes;

__device__ __forceinline__ int lane_of_thread() {
  return static_cast<int>(threadIdx.x % kWarpLanes);
}

template <class T>
struct Problem {
  Sinkhorn a;
  Mat<const T> logits;
  Workspace work;
  float* u;
  float* v;
  int64_t rows_per_chunk;

  __device__ bool valid(int64_t t) const { return a.valid == nullptr || a.valid[t] != 0; }
  __device__ bool takes_part(int64_t t) const { return !isnan(work.u[t]); }
  __device__ float z(int64_t t, int64_t e) const { return static_cast<float>(logits(t, e)); }
};

__device__ __forceinline__ double warp_top(double v) {
  for (int offset = kWarpLanes / 2; offset > 0; offset /= 2) {
    v = fmax(v, __shfl_xor_sync(kWholeWarp, v, offset));
  }
  return v;
}

// Warp: the largest of z + v in the row.
template <class T>
__device__ double row_top(const Problem<T>& p, int64_t t) {
  double top = -INFINITY;
  for (int64_t e = lane_of_thread(); e < p.logits.cols; e += kWarpLanes) {
    top = fmax(top, p.z(t, e) + p.work.v[e]);
  }
  return warp_top(top);
}

// f(t) for the rows of a chunk, one warp a row.
template <class T, class F>
__device__ void each_row(const Problem<T>& p, int64_t chunk, const F& f) {
  const int64_t end = min((chunk + 1) * p.rows_per_chunk, p.logits.rows);
  for (int64_t t = chunk * p.rows_per_chunk + threadIdx.x / kWarpLanes; t < end; t += kWarps) f(t);
}

// Warp: marks a row that takes no part.
template <class T>
__device__ void mark_row(const Problem<T>& p, int64_t t) {
  float top = -INFINITY, poison = 0;
  for (int64_t e = lane_of_thread(); e < p.logits.cols; e += kWarpLanes) {
    const float z = p.z(t, e);
    top = fmaxf(top, z);
    if (isnan(z)) poison = z;
  }
  top = warp_max(top) + warp_sum(poison);
  if (lane_of_thread() == 0) p.work.u[t] = p.valid(t) && isfinite(top) ? 0 : NAN;
}

template <class T>
__device__ void start_chunk(const Problem<T>& p, int64_t chunk, int64_t* scratch) {
  each_row(p, chunk, [&](int64_t t) { mark_row(p, t); });
  const int64_t first = chunk * p.rows_per_chunk;
  const int64_t end = min(first + p.rows_per_chunk, p.logits.rows);
  int64_t count = 0;
  for (int64_t t = first + threadIdx.x; t < end; t += kThreads) count += p.valid(t);
  count = block_sum<kThreads>(count, scratch);
  if (threadIdx.x == 0) p.work.counts[chunk] = count;
}

// Warp: u of the row.
template <class T>
__device__ void update_row(const Problem<T>& p, int64_t t) {
  if (!p.takes_part(t)) return;
  const double top = row_top(p, t);
  float sum = 0;
  for (int64_t e = lane_of_thread(); e < p.logits.cols; e += kWarpLanes) {
    sum += expf(static_cast<float>(p.z(t, e) + p.work.v[e] - top));
  }
  sum = warp_sum(sum);
  __syncwarp();
  // Without -ln n, so that exp(z + u + v) is n P.
  if (lane_of_thread() == 0) p.work.u[t] = -top - logf(sum);
}

// Block: the chunk's part of every column's sum of n P. Threads side by side take columns side by
// side; where there are fewer columns than threads, further threads take further rows.
template <class T>
__device__ void sum_columns(const Problem<T>& p, int64_t chunk, float* scratch) {
  const int64_t E = p.logits.cols, first = chunk * p.rows_per_chunk;
  const int64_t end = min(first + p.rows_per_chunk, p.logits.rows);
  int width = kThreads;
  while (width / 2 >= E && width > kWarpLanes) width /= 2;
  const int row = static_cast<int>(threadIdx.x) / width, rows = kThreads / width;
  for (int64_t base = 0; base < E; base += width) {
    const int64_t e = base + threadIdx.x % width;
    float sum = 0;
    if (e < E) {
      const double v = p.work.v[e];
      for (int64_t t = first + row; t < end; t += rows) {
        if (p.takes_part(t)) sum += expf(static_cast<float>(p.z(t, e) + v + p.work.u[t]));
      }
    }
    __syncthreads();
    scratch[threadIdx.x] = sum;
    __syncthreads();
    if (row != 0 || e >= E) continue;
    for (int r = 1; r < rows; ++r) sum += scratch[r * width + threadIdx.x];
    p.work.parts[e * p.work.chunks + chunk] = sum;
  }
}

// Warp: ln sum_t exp(z + u) + ln n, relative to its maximum; for columns too small for sum_columns.
template <class T>
__device__ double column_lse(const Problem<T>& p, int64_t e) {
  double top = -INFINITY, sum = 0;
  for (int64_t t = lane_of_thread(); t < p.logits.rows; t += kWarpLanes) {
    if (p.takes_part(t)) top = fmax(top, p.z(t, e) + p.work.u[t]);
  }
  top = warp_top(top);
  if (top == -INFINITY) return top;
  for (int64_t t = lane_of_thread(); t < p.logits.rows; t += kWarpLanes) {
    if (p.takes_part(t)) sum += exp(p.z(t, e) + p.work.u[t] - top);
  }
  return top + log(warp_sum(sum));
}

// Warp: v of a column, and how far it moved.
template <class T>
__device__ void update_column(const Problem<T>& p, int64_t e, int64_t n) {
  double sum = 0;
  for (int64_t c = lane_of_thread(); c < p.work.chunks; c += kWarpLanes) {
    sum += p.work.parts[e * p.work.chunks + c];
  }
  sum = warp_sum(sum);
  const auto tokens = static_cast<double>(n), experts = static_cast<double>(p.logits.cols);
  const double old = p.work.v[e];
  double next = old;
  if (sum >= kSafeSum) {
    next -= log(sum * experts / tokens);
  } else {
    const double column = column_lse(p, e);
    if (column > -INFINITY) next = log(tokens / experts) - column;
  }
  __syncwarp();
  if (lane_of_thread() != 0) return;
  p.work.change[e] = fabs(next - old);
  p.work.v[e] = next;
}

// Warp: the row's K largest of z + v; the row is read K times.
template <class T>
__device__ void choose(const Problem<T>& p, int64_t t) {
  const int64_t K = p.a.choices;
  const bool valid = p.valid(t);
  const double top = row_top(p, t);
  uint64_t last = ~uint64_t{0};
  for (int64_t k = 0; k < K; ++k) {
    uint64_t best = 0;
    for (int64_t e = lane_of_thread(); valid && e < p.logits.cols; e += kWarpLanes) {
      const auto left = static_cast<float>(p.z(t, e) + p.work.v[e] - top);
      const uint64_t next = ranked(sort_key(left), static_cast<uint32_t>(e));
      if (next < last && next > best) best = next;
    }
    last = warp_max_ranked(best);
    if (lane_of_thread() == 0) p.a.ids[t * K + k] = valid ? index_of(last) : -1;
  }
}

// All threads of the grid: u and v as they are given back.
template <class T>
__device__ void store(const Problem<T>& p, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const double log_n = log(static_cast<double>(n));
  for (int64_t t = first; t < p.logits.rows; t += step) {
    p.u[t] = p.takes_part(t) ? static_cast<float>(p.work.u[t] - log_n) : 0;
  }
  for (int64_t e = first; e < p.logits.cols; e += step) p.v[e] = static_cast<float>(p.work.v[e]);
}

template <class V, class P>
__device__ V sum_all(const P* x, int64_t n, V* scratch) {
  V sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += x[i];
  return block_sum<kThreads>(sum, scratch);
}

// All blocks are resident and meet twice an iteration: after the chunks' column sums, and after the
// columns' update. Each then decides by itself, from the same numbers in the same order, whether to
// stop. The logits are read twice an iteration, from the L2 cache where they fit.
template <class T>
__global__ void __launch_bounds__(kThreads, 2) sinkhorn_kernel(Problem<T> p) {
  __shared__ float floats[kThreads];
  __shared__ double doubles[kWarps];
  __shared__ int64_t integers[kWarps];
  const auto grid = cooperative_groups::this_grid();
  const int64_t E = p.logits.cols, chunks = p.work.chunks;
  const int64_t first_warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes;
  const int64_t num_warps = int64_t{gridDim.x} * kWarps;
  for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) start_chunk(p, c, integers);
  for (int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x; e < E; e += gridDim.x * kThreads) {
    p.work.v[e] = 0;
  }
  grid.sync();
  const int64_t n = sum_all<int64_t>(p.work.counts, chunks, integers);
  int done = 0;
  for (bool stop = n == 0; !stop; stop = stop || done == p.a.max_iterations) {
    for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
      each_row(p, c, [&](int64_t t) { update_row(p, t); });
      __syncthreads();
      sum_columns(p, c, floats);
    }
    grid.sync();
    for (int64_t e = first_warp; e < E; e += num_warps) update_column(p, e, n);
    grid.sync();
    const double change = sum_all<double>(p.work.change, E, doubles);
    stop = change / static_cast<double>(E) <= p.a.tolerance;
    ++done;
  }
  for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    each_row(p, c, [&](int64_t t) { choose(p, t); });
  }
  store(p, n);
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.a.iterations = done;
}

// As many blocks as there are chunks, or as fit on the device at once.
template <class T>
int64_t resident_blocks(int64_t chunks) {
  int device = 0, processors = 0, per_processor = 0;
  TROUPE_CUDA_CHECK(cudaGetDevice(&device));
  TROUPE_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  TROUPE_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor,
                                                                  sinkhorn_kernel<T>, kThreads, 0));
  return std::clamp<int64_t>(chunks, 1, int64_t{processors} * per_processor);
}

}  // namespace

void sinkhorn_cuda(const Sinkhorn& a, cudaStream_t stream) {
  validate(a);
  TROUPE_CHECK(a.workspace != nullptr, "workspace of", workspace_bytes(a), "bytes");
  dispatch_float(a.logits.dtype, [&]<class T>() {
    Problem<T> problem{a,
                       a.logits.as<T>(),
                       sinkhorn_detail::workspace(a),
                       a.u.as<float>().data,
                       a.v.as<float>().data,
                       sinkhorn_detail::rows_per_chunk(a.logits.rows)};
    const auto blocks = static_cast<unsigned>(resident_blocks<T>(problem.work.chunks));
    void* arguments[] = {&problem};
    TROUPE_CUDA_CHECK(cudaLaunchCooperativeKernel(sinkhorn_kernel<T>, dim3(blocks), dim3(kThreads),
                                                  arguments, 0, stream));
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
